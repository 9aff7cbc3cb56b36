"""Who made a record, when, and how to make the run again, for people who find it without its session."""

import datetime as dt

from pytest_llmbench.core.schema import Strict


class MadeBy(Strict):
    """The session that made a record. Nothing in it is secret: `***` stands in its place.

    Attributes:
        llmbench_version: version of this package.
        command: words of pytest's command line.
        directory: folder in which it was started.
        user: login name; None where the machine has none for its user.
        host: host of pytest.
        submitted, started, ended: ISO 8601 times with zone; None where it did not get that far.
        reproduce: command line that makes the run or check again, by the tests that waited for it.
    """

    llmbench_version: str
    command: tuple[str, ...]
    directory: str
    user: str | None
    host: str
    submitted: str | None = None
    started: str | None = None
    ended: str | None = None
    reproduce: str


def iso(unix: float | None) -> str | None:
    """A Unix time as ISO 8601, in the zone of this machine; None for None."""
    return None if unix is None else dt.datetime.fromtimestamp(unix).astimezone().isoformat(timespec="milliseconds")
