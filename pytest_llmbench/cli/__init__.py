"""The command `llmbench`: each subcommand is a thin face over what the package does, in the module of its name."""
