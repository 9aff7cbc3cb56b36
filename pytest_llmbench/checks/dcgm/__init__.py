"""Checks of DCGM's diagnostics."""
