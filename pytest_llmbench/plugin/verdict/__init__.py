"""Turns records into verdicts: test outcomes, comparisons, and unfinished tests."""
