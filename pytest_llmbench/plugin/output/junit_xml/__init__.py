"""JUnit XML: written as verdicts come, and whole at any moment."""
