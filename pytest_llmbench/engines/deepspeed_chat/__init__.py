"""Engine deepspeed_chat: DeepSpeed-Chat's training scripts as a command."""
