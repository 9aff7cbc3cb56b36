"""Opening the history: SQLite in a file, or PostgreSQL. Tables are made in an empty database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.history.store.tables import METADATA, SCHEMA

LEGAL = "a file, sqlite:///FILE, or postgresql://USER@HOST/DATABASE"
# Another process that writes is waited for so long.
_PATIENCE_S = 60.0
# Any numbers, as long as every process takes the same ones: whoever holds one makes the tables, or writes.
_MAKING, _WRITING = 0x6C6C6D62, 0x6C6C6D63
_READS = "llmbench_reads"
# Another version of the tables in `tables.py` needs another number here.
SCHEMA_VERSION = 1


class History:
    """An open history.

    Attributes:
        engine: connects to it.
        shown: its URL without a password, for people.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shown = engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database.

        Raises:
            ConfigError: the database cannot be read.
        """
        with _errors(self.shown, "read"), self.engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is there as a whole, or not at all. Processes that write at once wait for each other.

        Raises:
            ConfigError: the database cannot be written.
        """
        with _errors(self.shown, "written"), self.engine.begin() as connection:
            _lock_postgresql(connection, _WRITING)
            yield connection


@contextmanager
def open_history(given: str | Path) -> Iterator[History]:
    """Open a history, and make its tables in a database that has none.

    Args:
        given: a file, or a URL of SQLite or PostgreSQL.

    Raises:
        ConfigError: it cannot be meant or reached, is not a history, or has another schema version.
    """
    url = _url(given)
    shown = url.render_as_string(hide_password=True)
    with _errors(shown, "opened"):
        engine = _engine(url)
    try:
        with _errors(shown, "opened"), engine.begin() as connection:
            _lock_postgresql(connection, _MAKING)
            _make_tables(connection, shown)
        yield History(engine)
    finally:
        engine.dispose()


def _url(given: str | Path) -> URL:
    told = str(given)
    if not told.strip():
        raise ConfigError(f"the history has no name: give {LEGAL}")
    if "://" not in told:
        return URL.create("sqlite", database=str(Path(told).expanduser().absolute()))
    try:
        url = make_url(told)
    except ArgumentError as error:
        raise ConfigError(f"this is not a URL of a history: give {LEGAL}") from error
    backend = url.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigError(f"a history cannot be in {backend}: give {LEGAL}")
    if url.database in {None, "", ":memory:"}:
        raise ConfigError(f"a history in memory is lost with its process: give {LEGAL}")
    return url.set(drivername="sqlite")


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        if path.is_dir():
            raise ConfigError(f"the history {path} is a folder: give a file in it, such as {path / 'history.db'}")
        make_folder(path.parent)
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _PATIENCE_S})
        event.listen(engine, "connect", _begin_sqlite)
        event.listen(engine, "begin", _lock_sqlite)
        return engine
    try:
        return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": int(_PATIENCE_S)})
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigError(
            f"PostgreSQL needs psycopg, which is not installed ({error}): pip install 'pytest-llmbench[postgresql]'"
        ) from error


def _begin_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # Python's own transactions leave out DDL: SQLAlchemy begins them, below.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _lock_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes would fail, and not wait, if another one has written in between.
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _lock_postgresql(connection: Connection, number: int) -> None:
    """Have one writer at a time until the end of the transaction, as SQLite does: two may add the same series."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def _make_tables(connection: Connection, shown: str) -> None:
    """Make the tables where there are none, and refuse those of another version.

    Raises:
        ConfigError: another version of this package made them; they are left as they are.
    """
    if not inspect(connection).has_table(SCHEMA.name):
        METADATA.create_all(connection)
        connection.execute(insert(SCHEMA).values(version=SCHEMA_VERSION))
    version = connection.execute(select(SCHEMA.c.version)).scalar()
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"the history {shown} has schema version {version}, and this pytest-llmbench has {SCHEMA_VERSION}. Nothing "
            "was changed in it. Use the pytest-llmbench that made it, or import the folders of the sessions into a new "
            "one: llmbench history import reports --history NEW.db"
        )


@contextmanager
def _errors(shown: str, verb: str) -> Iterator[None]:
    """Say which history a driver's error is about, without its password."""
    try:
        yield
    except DBAPIError as error:
        busy = " (another process kept it busy)" if isinstance(error, OperationalError) and _is_busy(error) else ""
        told = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
        raise ConfigError(f"the history {shown} cannot be {verb}{busy}: {told[0]}") from error
    except OSError as error:
        raise ConfigError(f"the history {shown} cannot be {verb}: {error}") from error


def _is_busy(error: Any) -> bool:
    return "database is locked" in str(error.orig)
