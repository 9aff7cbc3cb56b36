"""Validation: `pytest --pyargs pytest_llmbench.suites.validation`."""
