"""Files of a session that follow from its other files."""
