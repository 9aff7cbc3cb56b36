"""Choice and deletion of old session folders."""

import os
import shutil
import time
from contextlib import closing, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.folder import read_events, session_of, sessions_in
from pytest_llmbench.session.journal.earlier import jobs_in, jobs_of_user, processes_of
from pytest_llmbench.session.journal.journal import Journal, is_owned

_DAY_S = 86400.0
# A session renews its sign of life every few seconds. Clocks of hosts and caches of file systems differ by less.
_LIVES_S = 600.0
_jobs_of_user = cache(jobs_of_user)


def choose(run_dir: Path, older_than: float | None, keep: int | None) -> list[dict[str, Any]]:
    """Decide on each session of a folder, newest first: it may go after `older_than` days without a change.

    A row has the name of its folder, the days since its last change, its bytes, its fate (`delete` or `keep`), and the
    reason to keep it. Raises ConfigError if the folder is missing.
    """
    _jobs_of_user.cache_clear()
    rows = []
    for number, folder in enumerate(sessions_in(run_dir)):
        times = [path.lstat().st_mtime for path in (folder, *folder.iterdir())]
        age = max(0.0, (time.time() - max(times)) / _DAY_S)
        if keep is not None and number < keep:
            why = f"among the newest {keep}"
        elif older_than is not None and age <= older_than:
            why = f"not older than {older_than:g} days"
        else:
            why = _sign_of_life(folder)
        size = sum(Path(place, name).lstat().st_size for place, _, names in os.walk(folder) for name in names)
        fate = "keep" if why else "delete"
        rows.append({"session": folder.name, "age_days": round(age, 1), "bytes": size, "fate": fate, "why": why})
    return rows


def delete(folder: Path) -> str:
    """Delete a session's folder; return the reason if that fails, or another process resumes it at this moment."""
    path = folder / layout.JOURNAL
    try:
        # The open journal locks out a process that would resume the session.
        with closing(Journal(path)) if path.exists() else nullcontext():
            shutil.rmtree(folder)
    except (ConfigError, OSError) as error:
        return str(error)
    return ""


def _sign_of_life(folder: Path) -> str:
    """The sign that a session lives, or that its end is unknown; empty for one that may go."""
    path, owner = folder / layout.JOURNAL, folder / layout.OWNER
    session, clusters = Session(id=folder.name, folder=folder), set[str]()
    if path.exists():
        try:
            session, events = session_of(folder), read_events(folder)
        except ConfigError:
            return "its journal is damaged: look for jobs of it with squeue, then delete it by hand"
        clusters = {event.cluster for event in events if event.event == "began"}
        ended = bool(events) and events[-1].event == "ended"
        if is_owned(path):
            return "it runs"
        if not ended and owner.exists() and time.time() - owner.stat().st_mtime < _LIVES_S:
            return "it runs, or did a few minutes ago"
    if list(processes_of(session)):
        return "it has processes on this machine"
    if clusters - {"local", "debug"}:
        return _sign_in_slurm(session)
    # Without a journal it is a replay, which starts no jobs, or it lost its journal.
    return "" if path.exists() or shutil.which("squeue") is None else _sign_in_slurm(session)


def _sign_in_slurm(session: Session) -> str:
    """The reason to keep a session for its jobs, which Slurm lists or fails to list; empty without jobs."""
    rows, error = _jobs_of_user()  # Slurm is asked once for all sessions
    if error:
        return f"Slurm cannot be asked for its jobs: {error}"
    return "it has jobs in Slurm" if jobs_in(rows, session) else ""
