"""From records to verdicts: test outcomes, comparisons, and tests that were left unfinished."""
