"""Checks of the shared file system."""
