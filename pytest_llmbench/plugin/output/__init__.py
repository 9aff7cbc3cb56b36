"""The session's output: terminal, progress and JUnit XML."""
