"""Engine torch: a decoder in plain PyTorch, trained by our own ranks."""
