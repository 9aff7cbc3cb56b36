"""Parsers shared by engines and checks: they turn output into values, and survive any damage in it."""
