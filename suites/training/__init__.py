"""Training: `pytest --pyargs pytest_llmbench.suites.training`."""
