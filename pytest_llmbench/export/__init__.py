"""The numbers of a session for programs that watch, plot and tabulate: in formats of theirs."""
