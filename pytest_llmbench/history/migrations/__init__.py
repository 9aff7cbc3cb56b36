"""Migrations of the history's schema, for Alembic."""
