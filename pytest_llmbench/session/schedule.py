"""The schedule of a session: which run is launched next, on which nodes, and what becomes of a launch."""

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pytest_llmbench.cluster.jobs import Job, SlurmJob
from pytest_llmbench.cluster.lease import Lease, LeasePool, TooFewLeftError
from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.aside import Aside
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError, QueueFullError
from pytest_llmbench.cluster.slurm.full_queue import FullQueue
from pytest_llmbench.cluster.slurm.marks import JobMarks
from pytest_llmbench.cluster.slurm.queries import GLANCE_S
from pytest_llmbench.cluster.slurm.queue import SILENCE_S, Slurm
from pytest_llmbench.cluster.slurm.rhythm import QUIET_S
from pytest_llmbench.cluster.slurm.states import OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.active import Active
from pytest_llmbench.session.launch import Launcher
from pytest_llmbench.session.launches import Launches
from pytest_llmbench.session.record_store import Glance
from pytest_llmbench.session.script.prepared import PreparedRun

# Slurm's controller is a shared service.
_SUBMITTED_AT_ONCE = 4
_LOOK_S = 0.005
# Slurm may take another job sooner than one of ours ends.
_HELD_BACK_S = 60.0
_FEW_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """The outcome of a launch.

    Attributes:
        job: None where nothing was launched, as a job of higher priority takes the nodes.
        submitted, at: when it began: as Unix time, and by our clock.
    """

    job: Job | None
    marks: JobMarks
    submitted: float
    at: float


@dataclass(frozen=True, kw_only=True)
class _Launching:
    """A run that is being launched; Slurm has not answered yet."""

    run: PreparedRun
    lease: Lease | None
    work: Aside[_Launched]


@dataclass(kw_only=True)
class Schedule:
    """Launches runs in order, as many at a time as nodes and `llmbench_max_runs` allow.

    Attributes:
        begun: told each run that was launched.
        fail: told each run that never will be, and why.
        say: told what people should know.
        waiting: runs that wait, in order.
        active: runs under way.
        launches: launches that came to nothing.
        pool: the session's nodes; None before they are there, and where each run has a job of its own.
        holder: the job that holds them, if one does.
        new_holds: further jobs that may be asked to hold nodes, after one that lost some.
        is_short: whether the next run does not fit on the nodes that are left, and waits for new ones.
    """

    settings: Settings
    launcher: Launcher
    slurm: Slurm
    begun: Callable[[Active], None]
    fail: Callable[[PreparedRun, Problem], None]
    say: Callable[[str], None]
    waiting: list[PreparedRun] = field(default_factory=list)
    active: list[Active] = field(default_factory=list)
    launches: Launches = field(default_factory=Launches)
    pool: LeasePool | None = None
    holder: OurJob | None = None
    new_holds: int = 0
    is_short: bool = False
    _launching: list[_Launching] = field(default_factory=list)
    _first_run_over: bool = False
    _one_by_one: bool = False  # since Slurm has refused one too many
    _refused: dict[str, int] = field(default_factory=dict)

    @cached_property
    def full_queue(self) -> FullQueue:
        """Watches over submissions that are held back."""
        return FullQueue(self.slurm.queries, self.settings.max_wait_min, self.say)

    @property
    def launching(self) -> list[PreparedRun]:
        """Runs whose launches Slurm has not answered yet."""
        return [each.run for each in self._launching]

    @property
    def busy(self) -> bool:
        """Whether any run waits, is being launched, or is under way."""
        return bool(self.waiting or self._launching or self.active)

    @property
    def has_few_steps(self) -> bool:
        """Whether a few steps run, whose ends cost next to nothing to look for."""
        return self.holder is not None and 0 < len(self.active) <= _FEW_STEPS

    def launch_what_fits(self) -> None:
        """Launch the next runs for which there are nodes."""
        began = time.monotonic()
        for run in list(self.waiting):
            # Runs under way are looked after in between.
            if not self._may_launch or time.monotonic() - began > GLANCE_S:
                return
            if run not in self.waiting:
                continue  # given up meanwhile
            if self._follows(run):
                continue
            lease = None
            if self.pool is not None:
                try:
                    lease = _lease(run, self.pool)
                except ClusterError as error:
                    if isinstance(error, TooFewLeftError) and self.new_holds > 0:
                        self.is_short = True  # what is under way keeps its nodes until it is over
                        return
                    self.waiting.remove(run)
                    #: problem allocation: Slurm refuses the request, will never start the job, or has a node in it that
                    #:  is in quarantine
                    self.fail(run, Problem(kind="allocation", message=str(error)))
                    continue
                if lease is None and run.spec.group is None:
                    return  # in order: a later, smaller run must not starve this one
                if lease is None:
                    continue  # another group's nodes may be free
            self.waiting.remove(run)
            self._launch(run, lease)

    @property
    def _may_launch(self) -> bool:
        """Whether another run may be launched now; waits a moment for the answers to others."""
        # Steps are launched one after the other: each has to know the state of the job in which it runs.
        most = 1 if self._one_by_one or self.holder is not None else _SUBMITTED_AT_ONCE
        self.take_launched(0.0)
        while len(self._launching) >= most and time.monotonic() - self._launching[0].work.began < GLANCE_S:
            time.sleep(_LOOK_S)
            self.take_launched(0.0)
        return len(self._launching) < most and not self._is_full and not self.launches.paused

    def take_launched(self, within_s: float | None) -> None:
        """Go on with launches that end within `within_s` seconds; None waits for them."""
        for each in list(self._launching):
            if each.work.done(within_s):
                self._launching.remove(each)
                self._take(each.run, each.lease, each.work.result)

    def launch_again(self, run: PreparedRun, why: str) -> None:
        """A launch came to nothing, and no rank has started: have another try, or give the run up, or all of them."""
        launches = self.launches
        if (
            self.slurm.silent and self.slurm.controller.silent_s < SILENCE_S
        ):  # nobody could launch it now, which says nothing of the run
            self.slurm.controller.say_silent(why)
            launches.pause(f"Slurm does not answer: {why}", QUIET_S)
            self.waiting.insert(0, run)
            return
        if not launches.failed(run.key, why):
            self.say(f"run {run.key} could not be launched: {why}; once more in {launches.pause_s:.0f} s")
            self.waiting.insert(0, run)
            return
        times = len(launches.reasons[run.key])
        logs = str(run.place.folder / layout.LOGS)
        self.fail(run, Problem(kind="launch_failed", message=f"{why} (launched {times} times)", log=logs))
        if launches.hopeless:
            message = f"not launched: {launches.in_a_row} runs in a row could not be, the last ({run.key}): {why}"
            self.say(f"no more runs are launched: {launches.in_a_row} in a row could not be: {why}")
            self.fail_waiting(Problem(kind="launch_failed", message=message))

    def fail_waiting(self, problem: Problem) -> None:
        """Give up every run that waits."""
        while self.waiting:
            self.fail(self.waiting.pop(0), problem)

    def give_up_repeats(self, broken_run: RunSpec, problem: Problem) -> None:
        """Give up the runs that were to be judged together with one that cannot be: they would decide nothing."""
        left = [run for run in self.waiting if run.spec.series == broken_run.series]
        self.waiting = [run for run in self.waiting if run not in left]
        for run in left:
            message = f"not run: it was to be judged together with {broken_run.key}, which cannot be ({problem.kind})"
            #: problem not_repeated: a run that was to be judged together with another cannot decide anything any more
            self.fail(run, Problem(kind="not_repeated", message=message))

    def _follows(self, run: PreparedRun) -> bool:
        """Whether an earlier run has to be over first, which is judged together with it."""
        waiting = self.waiting[: self.waiting.index(run)]
        series = run.spec.series
        return any(
            other.spec.series == series for other in (*waiting, *self.launching, *(each.run for each in self.active))
        )

    def forget(self, active: Active, *, worked: bool = False) -> None:
        """Take a run's nodes back; `worked` says that its ranks had started."""
        if active not in self.active:
            return  # the run was over, and its end is what broke
        self.active.remove(active)
        if isinstance(active.job, SlurmJob):
            self.slurm.let_go(active.job.ours)
        self._free(active.lease)
        if self._one_by_one:
            self.launches.go_on()
        if worked:
            self.launches.worked()
            self._first_run_over = True

    @property
    def _is_full(self) -> bool:
        begun = len(self.active) + len(self._launching)
        alone = self.settings.first_run_alone and begun > 0 and not self._first_run_over
        return alone or (self.settings.max_runs is not None and begun >= self.settings.max_runs)

    def _launch(self, run: PreparedRun, lease: Lease | None) -> None:
        """Launch a run."""
        if self.settings.cluster != "slurm":
            self._take(run, lease, lambda: self._start(run, lease))
            return
        # Slurm may take minutes to answer, or never do: runs under way are looked after meanwhile.
        work = Aside(lambda: self._start(run, lease), "launch")
        self._launching.append(_Launching(run=run, lease=lease, work=work))

    def _start(self, run: PreparedRun, lease: Lease | None) -> _Launched:
        marks, submitted, at = self._marks(), time.time(), time.monotonic()
        taken = marks is not None and bool(marks.preempted)
        job = None if taken else self.launcher.start_run(run, lease, self.holder)
        # A launch has to have had an answer of Slurm: so there is one about what was before it.
        return _Launched(job=job, marks=marks or self._marks() or JobMarks(), submitted=submitted, at=at)

    def _take(self, run: PreparedRun, lease: Lease | None, result: Callable[[], _Launched]) -> None:
        """Take on what a launch came to."""
        try:
            launched = result()
        except NotYetError as error:
            self._free(lease)
            self._hold_back(run, error)
            return
        except NoAnswerError as error:
            self._free(lease)
            self.slurm.refresh(GLANCE_S)
            self.launch_again(run, str(error))
            return
        except ClusterError as error:  # Slurm has said no: the same as where it is asked for nodes to hold
            self._free(lease)
            self.fail(run, Problem(kind="allocation", message=str(error)))
            return
        except OSError as error:
            self._free(lease)
            self.fail(run, Problem(kind="launch_failed", message=str(error)))
            return
        except Exception:  # noqa: BLE001 - a run's border
            self._free(lease)
            self.fail(run, broken())
            return
        job = launched.job
        if job is None:
            self._free(lease)
            self.waiting.insert(0, run)
            self.launches.pause("a job of higher priority takes the nodes")
            return
        self.full_queue.note_accepted(run.key)
        active = Active(
            run=run, job=job, lease=lease, submitted=launched.submitted, launched=launched.at, marks=launched.marks
        )
        self.active.append(active)
        self.begun(active)

    def _hold_back(self, run: PreparedRun, error: NotYetError) -> None:
        """Launch a run again after a while; one that is a job too many also as soon as one of ours has ended."""
        if not isinstance(error, QueueFullError):
            self.launches.pause(str(error), QUIET_S)
            self.waiting.insert(0, run)
            return
        ours = len(self.active) + len(self._launching)
        if why := self.full_queue.note_refused(run.key, error, ours=ours):
            self.fail(run, Problem(kind="allocation", message=why))
            return
        self._one_by_one = True
        self.launches.pause(str(error), _HELD_BACK_S if ours else QUIET_S)
        # Several may have been under way: they keep their order.
        number = self._refused.setdefault(run.key, len(self._refused))
        earlier = sum(self._refused.get(each.key, number) < number for each in self.waiting)
        self.waiting.insert(earlier, run)

    def _marks(self) -> JobMarks | None:
        """Past events of the job that holds the nodes; empty if each run will have a job of its own."""
        return JobMarks() if self.holder is None else self.slurm.marks(self.holder, recent=True)

    def _free(self, lease: Lease | None) -> None:
        if self.pool is not None and lease is not None:
            self.pool.release(lease)


def broken() -> Problem:
    """The problem of a run over which our own code broke, with the traceback."""
    #: problem harness: an error of this package, with its traceback
    error = "".join(traceback.format_exception_only(sys.exception())).strip().splitlines()[-1]
    return Problem(kind="harness", message=f"the runner broke: {error}\n{traceback.format_exc()}")


def _lease(run: PreparedRun, pool: LeasePool) -> Lease | None:
    nodes, group = run.topology.nodes, run.spec.group
    return pool.acquire(nodes) if group is None else pool.acquire_group(group, nodes)


class Repeats:
    """Hands runs from the thread that asks for them to the runner's; after its end, it hands them back."""

    def __init__(self) -> None:
        self._asked: list[RunSpec] = []
        self._over = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Whether the runner has not taken all of them."""
        return bool(self._asked)

    def ask(self, runs: Sequence[RunSpec]) -> Sequence[RunSpec]:
        """Ask for runs; return those that will not be made, because the runner is at its end."""
        with self._lock:
            if self._over:
                return runs
            self._asked += runs
            return ()

    def take(self) -> list[list[RunSpec]]:
        """Take what was asked for, in series."""
        with self._lock:
            asked, self._asked = self._asked, []
        return [list(runs) for _, runs in itertools.groupby(asked, key=lambda run: run.series)]

    def end(self) -> list[RunSpec]:
        """Take nothing from now on, and return what is left."""
        with self._lock:
            self._over = True
            return self._asked


def no_time_for(runs: Sequence[RunSpec], made: Mapping[str, Glance], ends_at: float) -> Problem | None:
    """Say why runs would not end before the job does that holds the nodes; None where they would.

    Args:
        runs: of one series.
        made: the facts of the finished runs.
        ends_at: Unix time.
    """
    each = max(run.took_s for run in made.values() if run.recipe == runs[0].recipe.name)
    left = max(ends_at - time.time(), 0.0)
    if len(runs) * each < left:
        return None
    message = (
        f"{len(runs)} more would take {len(runs) * each / 60:.1f} min, and the job that holds the nodes ends in "
        f"{left / 60:.1f} min (give a longer --time)"
    )
    return Problem(kind="not_repeated", message=message)
