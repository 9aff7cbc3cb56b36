"""The history: records of many sessions in one database, and what they say together."""
