"""Parsers shared by engines and checks. They accept damaged output."""
