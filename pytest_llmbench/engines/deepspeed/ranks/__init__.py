"""Engine deepspeed on a rank; `run` is where it starts."""
