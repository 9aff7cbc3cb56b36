"""The report of a session for people: one HTML file that works offline, made from the session's folder alone."""
