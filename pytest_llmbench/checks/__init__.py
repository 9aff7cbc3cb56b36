"""Checks: each module here validates one thing about hosts, GPUs, links or storage, and provides `CHECKS`."""
