"""The nodes of a session: held, checked, given to runs, and given back."""
