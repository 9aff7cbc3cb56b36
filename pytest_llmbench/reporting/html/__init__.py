"""The report of a session for people: one HTML file that needs no network, made from the session's folder alone."""
