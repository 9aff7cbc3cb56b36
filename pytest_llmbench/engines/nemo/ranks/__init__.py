"""The training script that engine nemo_torchrun gives to torchrun."""
