"""Checks of the host's configuration."""
