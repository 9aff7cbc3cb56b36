"""Drawings of the live view: a table for a terminal, and plain lines for anything else."""
