"""Nodes and their parts, as the history knows them."""
