"""The picture of a session at one moment, as the process that owns it writes it into the session's folder."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt, ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout

LiveState = Literal["waiting", "pending", "checking", "starting", "running", "ended", "judged"]
Expectation = Literal["PASS", "FAIL", "undecided"]

# Longer reasons are cut: the picture is to be small, and the record has the whole of it.
MOST_CHARACTERS = 300
# The worst first: one of its tests is enough to make a run, or a session, as bad.
SEVERITY = (
    Verdict.ERROR, Verdict.FAIL, Verdict.INCOMPLETE, Verdict.INCONCLUSIVE, Verdict.XFAIL, Verdict.PASS, Verdict.SKIP,
)  # fmt: skip


class Projected(Strict):
    """The result that a run under way would have by its steps so far. A projection is not a verdict."""

    verdict: Expectation = "undecided"
    """`PASS` or `FAIL` only where the interval of the steps so far decides every bound; else `undecided`."""
    statistic: str = ""
    """The number that was compared, or the throughput where there is no bound."""
    value: float | None = None
    """It so far; None where it is not measured yet."""
    low: float | None = None
    """Its interval; None while the steps are too few for one, and for an end that any number may be beyond."""
    high: float | None = None
    """Its interval; None while the steps are too few for one, and for an end that any number may be beyond."""
    unit: str = ""
    """Of the three."""
    bound: str = ""
    """The bound, such as `>= 200,000 words/s`; empty without one."""
    steps: NonNegativeInt = 0
    """Number of steps that it is about."""
    why: str = ""
    """The reason where it is undecided."""


class LiveTask(Strict):
    """How one run, or one check, stands."""

    name: str
    """Key of the run, or name of the check."""
    about: Literal["run", "check"] = "run"
    """`run` or `check`."""
    state: LiveState = "waiting"
    """`waiting` for nodes or for runs before it; `pending`: its job is in Slurm's queue; `checking`: a check under way;
    `starting`: no step so far; `running`; `ended`: its record is there, and not all of its tests have their verdict;
    `judged`.
    """
    detail: str = ""
    """The reason for its waiting, or its problem."""
    starts: float | None = None
    """Unix time at which Slurm expects to start it; None if unknown."""
    step: NonNegativeInt = 0
    """Its progress."""
    steps: NonNegativeInt = 0
    """Its progress."""
    words_per_s: float | None = None
    """Of its last step; None before the first, and where its duration is not known."""
    eta_s: float | None = None
    """Seconds to its last step at that rate."""
    started: float | None = None
    """Unix time; None before."""
    took_s: float | None = None
    """Seconds that it took; None while it goes on."""
    gpus: NonNegativeInt = 0
    """That it uses."""
    nodes: PositiveInt = 1
    """That it uses."""
    projected: Projected | None = None
    """None before the first projection."""
    verdict: Verdict | None = None
    """The worst of its tests; None before all have theirs."""

    def hours(self, at: float) -> float:
        """GPU-hours that it has used at a Unix time; node-hours without GPUs."""
        since = max(0.0, at - self.started) if self.started is not None and self.took_s is None else 0.0
        return (self.took_s if self.took_s is not None else since) * (self.gpus or self.nodes) / 3600


class LiveSnapshot(Strict):
    """How a session stands at one moment."""

    schema_version: Literal[1] = 1
    session: str
    """Its id."""
    host: str
    """Of the process that owns it."""
    pid: int
    """Of the process that owns it."""
    began: float
    """Unix times of its begin, and of this picture."""
    at: float
    """Unix times of its begin, and of this picture."""
    count: NonNegativeInt
    """Number of pictures before this one: it grows while the process lives, whatever clocks say."""
    word: str | None = None
    """The verdict on the whole session, as `verdict.json` has it; None while it goes on."""
    exit_code: int | None = None
    """Pytest's; likewise."""
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
        """Hours of all runs so far. In a session with GPUs, runs without any do not count."""
        on_gpus = self.unit == "GPU-hours"
        return sum(task.hours(self.at) for task in self.runs if task.gpus or not on_gpus)


def word_of(task: LiveTask) -> str:
    """The verdict of what is judged, else its state."""
    return str(task.verdict) if task.state == "judged" and task.verdict is not None else task.state


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The worst of some verdicts; None of none."""
    return min(verdicts, key=SEVERITY.index, default=None)


def read_snapshot(folder: Path) -> LiveSnapshot:
    """Read the picture of a session.

    Raises:
        ConfigError: there is none, or it is torn or damaged.
    """
    path = folder / layout.LIVE
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} has no {layout.LIVE}: none of its runs has begun, or an earlier version made it (llmbench watch "
            "needs it; the records of its runs are in runs/)"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return LiveSnapshot.model_validate_json(data)
    except ValidationError as error:
        told = error.errors()[0]
        raise ConfigError(
            f"{path} is torn or damaged, so nothing in it is shown ({'.'.join(map(str, told['loc']))} {told['msg']})"
        ) from error
