"""A run under way, and its state for observers."""

from dataclasses import dataclass, field
from typing import Literal

from pytest_llmbench.cluster.jobs import Job
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.slurm.marks import JobMarks
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.session.early import Looking
from pytest_llmbench.session.script.prepared import PreparedRun
from pytest_llmbench.session.watch import Watch


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """The state of one run, for a live line.

    Attributes:
        state: `waiting`, `checking` (the nodes), `pending`, `starting`, `running`.
        detail: the reason for its waiting.
        words_per_s: of the last step; None before the first, and where its duration is not known.
        eta_s: seconds to its last step at that rate.
        starts: Unix time at which Slurm expects to start it; None if unknown.
        run: None before it is launched.
    """

    key: str
    state: Literal["waiting", "checking", "pending", "starting", "running"]
    detail: str = ""
    step: int = 0
    steps: int = 0
    words_per_s: float | None = None
    eta_s: float | None = None
    starts: float | None = None
    started: float | None = None
    run: PreparedRun | None = field(default=None, compare=False, repr=False)


@dataclass(kw_only=True)
class Active:
    """A run under way.

    Attributes:
        submitted, launched: when its launch began: as Unix time, and by our clock.
        pending_reason, starts: of its pending job: Slurm's reason, and the Unix time of its expected start.
        cancelled: the problem for which the session ended it.
        marks: past events of its job when it was launched.
        orphan: its ranks may have ended themselves, because their session was dead before it was resumed.
        looking: looks at it while it goes on, with `--early-verdict`.
        avoided: nodes that its session had lost before, and that it was kept off.
    """

    run: PreparedRun
    job: Job
    lease: Lease | None
    submitted: float
    launched: float
    clock: UnixClock = field(default_factory=UnixClock)
    started: float | None = None
    watch: Watch | None = None
    looking: Looking | None = None
    pending_reason: str = ""
    starts: float | None = None
    cancelled: Problem | None = None
    marks: JobMarks = field(default_factory=JobMarks)
    suspended: bool = False
    orphan: bool = False
    avoided: tuple[str, ...] = ()


def view_of(active: Active) -> RunView:
    """The state of a run under way."""
    key, recipe = active.run.key, active.run.spec.recipe
    if active.watch is None:
        detail = f"{active.job.title} {active.pending_reason}".strip()
        return RunView(key=key, state="pending", detail=detail, starts=active.starts, run=active.run)
    seen = active.watch.progress
    if seen is None:
        return RunView(
            key=key, state="starting", detail=active.job.title, steps=recipe.steps, started=active.started,
            run=active.run,
        )  # fmt: skip
    return RunView(
        key=key,
        state="running",
        step=seen.step,
        steps=recipe.steps,
        words_per_s=recipe.tokens_per_step / seen.seconds if seen.seconds else None,
        eta_s=(recipe.steps - seen.step) * seen.seconds if seen.seconds else None,
        started=active.started,
        run=active.run,
    )
