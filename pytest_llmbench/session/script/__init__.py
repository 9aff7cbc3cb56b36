"""The scripts that a session submits."""
