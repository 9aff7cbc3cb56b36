"""Comparisons over time: of two sets of runs, of runs with a baseline, and the changes of a series."""
