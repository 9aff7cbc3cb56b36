"""The command `llmbench`. Each subcommand is a thin front end in its own module."""
