"""Parts of Megatron-Core's layer: attention, matrix products, pointwise kernels."""
