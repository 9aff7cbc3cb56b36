"""Collection of tests: test cases, selection, and refusals."""
