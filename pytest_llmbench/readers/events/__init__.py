"""Parsers of TensorBoard's event files."""
