"""Checks of rates of matrix products and memory."""
