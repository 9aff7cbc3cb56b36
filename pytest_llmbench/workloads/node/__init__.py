"""Helpers of a node: its processes, files, software, and the command of a framework."""
