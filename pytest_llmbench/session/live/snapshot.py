"""The live view of a session, `live.json`: its content, and how another process follows it."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt, ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout

# A living process writes its snapshot at least so often, even if it is unchanged.
SIGN_S = 5.0
# Several signs of life are missing: a file server may be slow with one of them.
SILENT_S = 3 * SIGN_S
# A living process has written by then.
_SURE_S = SIGN_S + 1.0
# Pictures are replaced in one step: a torn one is whole again soon.
_TORN_S = 5.0
LiveState = Literal["waiting", "pending", "checking", "starting", "running", "ended", "judged"]

# Longer reasons are cut: the snapshot is to be small, and the record has the whole of it.
_MOST_CHARACTERS = 300
# The worst first: one of its tests is enough to make a run, or a session, as bad.
SEVERITY = (
    Verdict.ERROR, Verdict.FAIL, Verdict.INCOMPLETE, Verdict.INCONCLUSIVE, Verdict.XFAIL, Verdict.PASS, Verdict.SKIP,
)  # fmt: skip


class LiveTask(Strict):
    """The state of one run or check."""

    name: str
    about: Literal["run", "check"] = "run"
    state: LiveState = "waiting"
    """`waiting` for nodes or for runs before it; `pending`: its job is in Slurm's queue; `checking`: a check under way;
    `starting`: before its first step; `running`; `ended`: its record is there, and some of its tests lack a verdict;
    `judged`.
    """
    detail: str = ""
    """The reason for its waiting, or its problem."""
    starts: float | None = None
    """Unix time at which Slurm expects to start it; None if unknown."""
    step: NonNegativeInt = 0
    steps: NonNegativeInt = 0
    words_per_s: float | None = None
    """Speed of its last step; None before the first, and if its duration is unknown."""
    eta_s: float | None = None
    """Seconds to its last step at that rate."""
    started: float | None = None
    """Unix time; None before."""
    took_s: float | None = None
    """Seconds that it took; None while it goes on."""
    gpus: NonNegativeInt = 0
    nodes: PositiveInt = 1
    hosts: str = ""
    """The names of its nodes, of many the first; empty before it has any."""
    bound: str = ""
    """The bound on its speed, such as `>= 200,000 words/s`; empty without one."""
    verdict: Verdict | None = None
    """The worst of its tests; None before all have theirs."""

    def hours(self, at: float) -> float:
        """GPU-hours that it has used at a Unix time; node-hours without GPUs."""
        since = max(0.0, at - self.started) if self.started is not None and self.took_s is None else 0.0
        return (self.took_s if self.took_s is not None else since) * (self.gpus or self.nodes) / 3600


class LiveSnapshot(Strict):
    """The state of a session at one moment."""

    schema_version: Literal[1] = 1
    session: str
    """Id of the session."""
    host: str
    """Host of the process that owns the session."""
    pid: int
    """Process id of the process that owns the session."""
    began: float
    """Unix time of its begin."""
    at: float
    """Unix time of this snapshot."""
    count: NonNegativeInt
    """Number of snapshots before this one: it grows while the process lives, whatever clocks say."""
    word: str | None = None
    """The session's verdict, as in `verdict.json`; None while it goes on."""
    exit_code: int | None = None
    """Exit code of pytest; None while it goes on."""
    tasks: tuple[LiveTask, ...] = ()
    """Its checks and its runs, in their order."""

    @property
    def runs(self) -> list[LiveTask]:
        """Its runs."""
        return [task for task in self.tasks if task.about == "run"]

    @property
    def counters(self) -> Counter[str]:
        """How many runs and checks are in each state, or have each verdict, by its word."""
        return Counter(word_of(task) for task in self.tasks)

    @property
    def unit(self) -> str:
        """Unit of `hours`: `node-hours` where no run uses a GPU."""
        return "GPU-hours" if any(task.gpus for task in self.tasks) else "node-hours"

    @property
    def hours(self) -> float:
        """Hours of all runs so far; in a session with GPUs, only those of runs on GPUs."""
        on_gpus = self.unit == "GPU-hours"
        return sum(task.hours(self.at) for task in self.runs if task.gpus or not on_gpus)


def one_line(text: str) -> str:
    """A reason in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"


def word_of(task: LiveTask) -> str:
    """The verdict of what is judged, else its state."""
    return str(task.verdict) if task.state == "judged" and task.verdict is not None else task.state


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The worst of some verdicts; None of none."""
    return min(verdicts, key=SEVERITY.index, default=None)


def read_snapshot(folder: Path) -> LiveSnapshot:
    """Read the snapshot of a session; a ConfigError if there is none, or it is torn or damaged."""
    path = folder / layout.LIVE
    try:
        data = read_regular(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} has no {layout.LIVE}: none of its runs has begun (llmbench watch needs it; the records of its "
            "runs are in runs/)"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return LiveSnapshot.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(
            f"{path} is torn or damaged, so nothing in it is shown ({'.'.join(map(str, fault['loc']))} {fault['msg']})"
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One look at a session."""

    snapshot: LiveSnapshot  # the last snapshot that could be read
    # Seconds since the last sign of life of its process; 0 while it does, and where the session is over
    silent_s: float = 0.0
    torn: str = ""  # the reason why the current snapshot cannot be read; empty where it can
    doubtful: bool = False  # its process seems to be gone, or its snapshot is old: only a later look decides

    @property
    def over(self) -> bool:
        """True if the session has ended in order."""
        return self.snapshot.exit_code is not None


class Watcher:
    """Looks at one session again and again. Clocks of two hosts may differ: what counts is whether snapshots follow."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._now = now
        self._last: LiveSnapshot | None = None
        self._moved: float | None = None
        self._first = clock()
        self._torn_since: float | None = None

    def look(self) -> Observation:
        """Look once; a ConfigError if the snapshot is missing, or unreadable for longer than a moment."""
        torn = self._read()
        last = self._last
        if last is None:
            raise ConfigError(torn)
        silent_s = self._silent_s(last)
        doubtful = last.exit_code is None and (self._is_gone(last) or self._now() - last.at > SILENT_S)
        return Observation(snapshot=last, silent_s=silent_s, torn=torn, doubtful=doubtful)

    @property
    def is_sure(self) -> bool:
        """True after enough time to distinguish a dead process from a wrong clock."""
        return self._moved is not None or self._clock() - self._first > _SURE_S

    def _read(self) -> str:
        """Read the snapshot; return the reason where it cannot be read, but an earlier one could."""
        try:
            snapshot = read_snapshot(self._folder)
        except ConfigError as error:
            self._torn_since = self._clock() if self._torn_since is None else self._torn_since
            if self._last is None or self._clock() - self._torn_since > _TORN_S:
                raise
            return str(error)
        self._torn_since = None
        if self._last is not None and (snapshot.count, snapshot.pid) != (self._last.count, self._last.pid):
            self._moved = self._clock()
        self._last = snapshot
        return ""

    def _silent_s(self, last: LiveSnapshot) -> float:
        if last.exit_code is not None:
            return 0.0
        now = self._clock()
        silent = now - self._moved if self._moved is not None else max(self._now() - last.at, now - self._first)
        # A container may have its host's name, and hides the processes of the host.
        return silent if silent > (_SURE_S if self._is_gone(last) else SILENT_S) else 0.0

    @staticmethod
    def _is_gone(last: LiveSnapshot) -> bool:
        return last.host == socket.gethostname() and not Path(f"/proc/{last.pid}").exists()
