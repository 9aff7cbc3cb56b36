"""Engine megatron_core on a rank; `run` is where it starts."""
