"""The journal of a session, from which another process can go on."""
