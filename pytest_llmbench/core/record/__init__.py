"""Results of a run or a check: records, series of steps, health, claims."""
