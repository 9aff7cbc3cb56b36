"""Output of a session for CI systems: its verdict in one word, a summary, and annotations."""
