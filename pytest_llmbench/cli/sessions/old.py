"""Choice and deletion of old session folders."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.slurm import commands
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.folder import read_events, session_of, sessions_in
from pytest_llmbench.session.journal.earlier import processes_of
from pytest_llmbench.session.journal.journal import Journal, is_owned

_DAY_S = 86400.0
# A session renews its sign of life every few seconds; clocks of two hosts, and caches of file systems, differ by less.
_LIVES_S = 600.0
_FIELD = "\x1f"


@dataclass(frozen=True, kw_only=True, slots=True)
class OldSession:
    """A session's folder, and what becomes of it.

    Attributes:
        folder: the folder.
        age_days: since its last change.
        size: of its files, bytes.
        fate: whether it is kept, would be deleted, or has been.
        why: the reason for which it is kept.
    """

    folder: Path
    age_days: float
    size: int
    fate: Literal["keep", "delete", "deleted"]
    why: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        """As a row."""
        return {
            "session": self.folder.name, "age_days": round(self.age_days, 1), "bytes": self.size, "fate": self.fate,
            "why": self.why,
        }  # fmt: skip


def choose(run_dir: Path, older_than: float | None, keep: int | None) -> list[OldSession]:
    """Decide on each session of a folder, newest first.

    Args:
        run_dir: the folder.
        older_than: days without a change after which a session may go.
        keep: number of newest sessions that stay.

    Raises:
        ConfigError: there is no such folder.
    """
    jobs = _Jobs()
    found = []
    for number, folder in enumerate(sessions_in(run_dir)):
        age = _age_days(folder)
        if keep is not None and number < keep:
            why = f"among the newest {keep}"
        elif older_than is not None and age <= older_than:
            why = f"not older than {older_than:g} days"
        else:
            why = _life(folder, jobs)
        size = sum(path.lstat().st_size for path in _files(folder))
        found.append(OldSession(folder=folder, age_days=age, size=size, fate="keep" if why else "delete", why=why))
    return found


def delete(session: OldSession) -> OldSession:
    """Delete a session's folder, unless another process resumes it at this moment."""
    path = session.folder / layout.JOURNAL
    try:
        if path.exists():
            with closing(Journal(path)):  # as long as it is open here, nobody resumes the session
                shutil.rmtree(session.folder)
        else:
            shutil.rmtree(session.folder)
    except (ConfigError, OSError) as error:
        return replace(session, fate="keep", why=str(error))
    return replace(session, fate="deleted")


def _age_days(folder: Path) -> float:
    times = [path.lstat().st_mtime for path in (folder, *folder.iterdir())]
    return max(0.0, (time.time() - max(times)) / _DAY_S)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _life(folder: Path, jobs: "_Jobs") -> str:
    """The sign that a session lives, or that its end is not known; empty for one that may go."""
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
        return jobs.of(session)
    # Without a journal it is a replay, or of a version that kept none.
    return "" if path.exists() or not jobs.can_tell else jobs.of(session)


class _Jobs:
    """This user's jobs in Slurm, which is asked once, and only if a session may have some."""

    def __init__(self) -> None:
        self._known: Sequence[tuple[str, str]] | None = None
        self._silent = ""

    @property
    def can_tell(self) -> bool:
        """Whether there is a Slurm to ask."""
        return shutil.which("squeue") is not None

    def of(self, session: Session) -> str:
        """The reason to keep a session for its jobs: it has some, or Slurm does not say."""
        if not self.can_tell:
            return "Slurm's commands are not on PATH, and it may have jobs"
        if self._known is None:
            self._known = []
            fields = _FIELD.join(("%o", "%k"))
            try:
                told = commands.run(["squeue", "--me", "--noheader", f"--format={fields}"])
            except ClusterError as error:
                self._silent = f"Slurm does not say whether it has jobs: {error}"
            else:
                rows = (line.partition(_FIELD) for line in told.splitlines())
                self._known = [(script, comment) for script, _, comment in rows]
        inside = f"{session.folder.resolve()}/"
        if any(comment.split(" ")[0] == session.token or script.startswith(inside) for script, comment in self._known):
            return "it has jobs in Slurm"
        return self._silent
