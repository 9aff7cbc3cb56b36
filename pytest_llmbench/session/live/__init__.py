"""The live view of a session: a small snapshot of all its runs and checks."""
