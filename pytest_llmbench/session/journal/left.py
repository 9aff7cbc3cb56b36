"""Sessions that were killed and not resumed: each new one names the newest of them, with what it left."""

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.slurm.queries import SlurmQueries
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.folder import read_events, session_of, sessions_in
from pytest_llmbench.session.journal.earlier import processes_of
from pytest_llmbench.session.journal.journal import JournalEvent, is_owned

# A process on another host, whose lock may not show here, is taken for dead after so long without a sign of life.
_SILENT_S = 300.0
# Nobody waits longer than this to begin, because of a session that is over.
_ASK_S = 5.0


def left_behind(run_dir: Path) -> str | None:
    """Tell of the newest dead session, what it left and how to go on. None where there is none: Slurm is not asked."""
    dead = list(_dead(run_dir))
    if not dead:
        return None
    folder, events = dead[0]
    began = next(event for event in reversed(events) if event.event == "began")
    judged = {event.name for event in events if event.event == "judged"}
    others = f" (and {len(dead) - 1} before it)" if len(dead) > 1 else ""
    return (
        f"session {folder.name}{others} never ended, and its process {began.pid} on {began.host} is gone: "
        f"{len(judged & set(began.tests))} of {len(began.tests)} tests judged, {_remains(session_of(folder), began)}; "
        f"--resume={folder.name} goes on with it, llmbench prune deletes old ones"
    )


def _dead(run_dir: Path) -> Iterator[tuple[Path, tuple[JournalEvent, ...]]]:
    """Folder and events of each session that has no verdict, and whose process is gone; the newest first."""
    for folder in sessions_in(run_dir, without=layout.VERDICT) if run_dir.is_dir() else ():
        path = folder / layout.JOURNAL
        try:
            events = read_events(folder)
            began = [event for event in events if event.event == "began"]
            if began and events[-1].event != "ended" and not is_owned(path) and _is_gone(began[-1], folder):
                yield folder, events
        except (ConfigError, OSError):  # whoever resumes it, or deletes it, is told
            continue


def _is_gone(began: JournalEvent, folder: Path) -> bool:
    if began.host == socket.gethostname():
        return began.pid != os.getpid() and not Path(f"/proc/{began.pid}").exists()
    owner = folder / layout.OWNER
    return not owner.exists() or time.time() - owner.stat().st_mtime > max(_SILENT_S, began.ttl_s)


def _remains(session: Session, began: JournalEvent) -> str:
    if began.cluster != "slurm":
        left = sorted(processes_of(session))
        return f"processes {', '.join(map(str, left))} still run" if left else "no process left"
    queries = SlurmQueries(deque())
    queries.end_within(_ASK_S)
    rows, error = queries.squeue("--me")
    inside = f"{session.folder.resolve()}/"
    ours = [
        f"{row.job_id} ({row.status.word})" for row in rows
        if row.status.alive and (row.comment.split(" ")[0] == session.token or row.script.startswith(inside))
    ]  # fmt: skip
    if error:
        return f"Slurm does not say whether it has jobs ({error})"
    return f"jobs {', '.join(ours)} are still there" if ours else "no job left"
