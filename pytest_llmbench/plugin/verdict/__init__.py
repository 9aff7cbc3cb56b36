"""From records to verdicts: test outcomes, comparisons, and tests that never finished."""
