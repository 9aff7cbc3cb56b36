"""The vocabulary of all other folders: `recipe/`, `wire/`, `record/`."""
