"""The end of a run: its cause, its log, its record."""
