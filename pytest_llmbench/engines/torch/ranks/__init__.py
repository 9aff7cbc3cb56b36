"""Engine torch on a rank: the decoder, how it is spread over ranks, and its loop. `run` is where it starts."""
