"""The suites that come with the package, as `pytest_llmbench.suites`, with their recipes and systems."""
