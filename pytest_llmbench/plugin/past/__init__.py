"""What earlier sessions say: the history that a session asks, is compared with, and is kept in."""
