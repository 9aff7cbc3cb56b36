"""Helpers for code on a node: processes, files, software, and the command of a framework."""
