"""The history: records of many sessions in one database, and comparisons over time."""
