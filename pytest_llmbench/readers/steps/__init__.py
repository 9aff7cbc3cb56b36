"""Parsers of the step log that our own ranks write."""
