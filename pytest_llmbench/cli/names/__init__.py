"""Names, files and their schemas: `llmbench list`, `validate` and `schema`."""
