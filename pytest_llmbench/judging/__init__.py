"""Arithmetic on a series of steps: `sanity/` decides whether to believe it, `interval/` how certain a speed is."""
