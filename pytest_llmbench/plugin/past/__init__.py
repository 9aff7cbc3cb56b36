"""Earlier sessions: the history that a session asks, is compared with, and is kept in."""
