"""What a run or a check leaves behind: records, series of steps, health, claims."""
