"""How Hypothesis works here: few examples, and no deadline, which a loaded machine would miss."""

from hypothesis import HealthCheck, settings

settings.register_profile("unit", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
