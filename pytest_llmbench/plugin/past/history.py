"""The history of a session: where it is, what it says before the session, and what it gets at the end."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin.options import Options, options_of
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.session.record_store import RecordStore

_GIT_S = 10.0


def consult(options: Options, *, is_worker: bool) -> Mapping[str, str]:
    """See that the history can be asked what the user wants to know, and return the nodes to avoid.

    Raises:
        ConfigError: there is none, it cannot be opened, or it lacks the tag or the commit.
    """
    place, wanted, avoid = options.history, options.compare_to, options.avoid_from_history == "yes"
    if place is None:
        asked = "--llmbench-compare-to" if wanted is not None else "llmbench_avoid_from_history" if avoid else None
        if asked is not None:
            raise ConfigError(f"{asked} asks a history: name one with --llmbench-history")
        return {}
    if is_worker and not avoid:  # the controller has looked
        return {}
    from pytest_llmbench.history.fleet.ledger import avoided  # noqa: PLC0415  # SQLAlchemy is heavy
    from pytest_llmbench.history.store.database import open_history  # noqa: PLC0415
    from pytest_llmbench.history.trend.baselines import check_wanted  # noqa: PLC0415

    with open_history(place) as history:
        if wanted is not None:
            check_wanted(history, wanted)
        return avoided(history) if avoid else {}


def keep(config: pytest.Config, session: Session, record_store: RecordStore) -> Reported | None:
    """Import the records of a session that is over; None where there is no history."""
    place = options_of(config).history
    if place is None:
        return None
    from pytest_llmbench.history.store.database import open_history  # noqa: PLC0415
    from pytest_llmbench.history.store.importing import About, import_sessions, records_in  # noqa: PLC0415

    try:
        with open_history(place) as history:
            about = About(version=__version__, git_commit=_commit(config.rootpath))
            told = import_sessions(history, [session.folder], about)
            shown = history.shown
    except (ConfigError, OSError) as error:
        return Reported(name="history", failure=f"the session is not in the history: {error}")
    written = {(about, path.parent.name) for about, path in records_in(session.folder)}
    made = {("run", key) for key in (*record_store.runs, *record_store.lost)} | {
        ("check", name) for name in record_store.checks
    }
    missing = [f"{session.folder}: the record of {about} {name} is not there" for about, name in sorted(made - written)]
    if wrong := [*told.refused, *missing]:
        return Reported(name="history", failure=f"the history {shown} lacks records: {'; '.join(wrong)}")
    return Reported(name="history", lines=(f"in the history {shown}: {told}",))


def _commit(folder: Path) -> str | None:
    """The commit of the checkout that has the tests; None where there is none, or no git."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
