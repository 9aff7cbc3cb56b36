"""One folder per family of checks, each check registered in pyproject.toml; `nodes` is the part that runs on nodes."""
