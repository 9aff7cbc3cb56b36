"""Checks of how GPUs and network cards are connected."""
