"""For authors of recipe and system files: JSON Schemas, and all faults of a file."""
