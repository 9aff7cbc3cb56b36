"""The making of a record: user, time, command line, and the command that makes the run again."""

import datetime as dt

from pytest_llmbench.core.schema import Strict


class MadeBy(Strict):
    """The session that made a record. Nothing in it is secret: `***` stands in its place."""

    llmbench_version: str
    """Version of pytest-llmbench."""
    command: tuple[str, ...]
    """Words of pytest's command line."""
    directory: str
    """Folder in which pytest was started."""
    user: str | None
    """Login name; null where the machine has none for its user."""
    host: str
    """Host on which pytest ran."""
    submitted: str | None = None
    """ISO 8601 time of the submission, with zone; null where the run did not get that far."""
    started: str | None = None
    """ISO 8601 time of the start, with zone; null where the run did not get that far."""
    ended: str | None = None
    """ISO 8601 time of the end, with zone; null where the run did not get that far."""
    reproduce: str
    """Command line that makes the run or check again, with the tests that waited for it."""


def iso(unix: float | None) -> str | None:
    """A Unix time as ISO 8601, in the zone of this machine; None for None."""
    return None if unix is None else dt.datetime.fromtimestamp(unix).astimezone().isoformat(timespec="milliseconds")
