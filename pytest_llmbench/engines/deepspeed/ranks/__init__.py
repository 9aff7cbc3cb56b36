"""Engine deepspeed on a rank: OPT under ZeRO, in the three steps of RLHF. `run` is where it starts."""
