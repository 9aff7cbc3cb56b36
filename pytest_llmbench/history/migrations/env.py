"""How Alembic migrates the history: on the connection that `open_history` holds, in its transaction."""

from alembic import context

from pytest_llmbench.history.store.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
