"""What a CI system reads of a session: its verdict in one word, a summary, annotations, and strict JUnit XML."""
