"""Engine megatron_core on a rank: its GPTModel with layers, loss and optimizer of ours. `run` is where it starts."""
