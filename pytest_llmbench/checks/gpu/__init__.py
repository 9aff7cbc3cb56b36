"""Checks of the GPUs that a node reports."""
