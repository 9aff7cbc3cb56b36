"""The database: its tables, how it is opened, and how records get in and out."""
