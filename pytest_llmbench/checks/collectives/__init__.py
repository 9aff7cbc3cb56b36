"""Checks of NCCL's collectives."""
