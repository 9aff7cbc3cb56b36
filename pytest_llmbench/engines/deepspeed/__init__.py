"""Engine deepspeed: OPT under ZeRO in the three steps of RLHF, trained by our own ranks."""
