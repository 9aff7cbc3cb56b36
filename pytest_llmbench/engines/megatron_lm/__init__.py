"""Engine megatron_lm: Megatron-LM's pretrain_gpt.py as a command."""
