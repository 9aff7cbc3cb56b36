"""Engine megatron_core: Megatron-Core's GPTModel, trained by our own ranks."""
