"""Findings beside a verdict: they explain a rate and never change it."""
