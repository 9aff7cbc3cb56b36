"""Checks: each validates one thing about hosts, GPUs, links or storage, and has a line of pyproject.toml."""
