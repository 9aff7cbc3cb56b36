"""Checks: one folder per family. `nodes/` runs on the nodes; pyproject.toml registers each check."""
