"""Findings next to a verdict: they explain a rate and never change it."""
