"""Floor 4: run records and verdicts out, in every form a reader wants."""
