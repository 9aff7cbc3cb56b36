"""Tests of ours, from their collection to the plan: cases, selection, and what is refused."""
