"""The journal of a session, by which another process can resume it."""
