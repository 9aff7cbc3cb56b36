"""Parsers shared by engines and checks: they turn output into values, and damage never makes them fail."""
