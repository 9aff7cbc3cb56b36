"""Checks of the links between nodes."""
