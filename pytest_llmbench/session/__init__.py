"""The session: it plans runs and checks, launches, watches and ends them."""
