"""The live view of a session: a small picture of all its runs and checks, and how they stand right now."""
