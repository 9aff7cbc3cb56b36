"""The nodes of a session: allocation, checks, leases and release."""
