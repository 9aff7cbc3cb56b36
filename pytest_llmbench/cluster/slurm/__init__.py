"""Slurm's commands and answers."""
