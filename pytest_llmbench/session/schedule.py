"""The schedule of a session: which run is launched next, on which nodes, and which launches and runs are repeated."""

import itertools
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_llmbench.cluster.jobs import SlurmJob
from pytest_llmbench.cluster.lease import Lease, LeasePool, TooFewLeftError
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.background import BackgroundCall
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError, QueueFullError
from pytest_llmbench.cluster.slurm.controller import QUIET_S
from pytest_llmbench.cluster.slurm.full_queue import FullQueue
from pytest_llmbench.cluster.slurm.queries import SHORT_WAIT_S, JobMarks
from pytest_llmbench.cluster.slurm.queue import SILENCE_S, Slurm
from pytest_llmbench.cluster.slurm.states import OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.record.records import Problem, ProblemKind, RunRecord
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.following import Active
from pytest_llmbench.session.journal.earlier import put_aside
from pytest_llmbench.session.launch import Launcher
from pytest_llmbench.session.record_store import RunSummary
from pytest_llmbench.session.script.prepared import PreparedRun

# Slurm's controller is a shared service.
_SUBMITTED_AT_ONCE = 4
_LOOK_S = 0.005
# Slurm may take another job sooner than one of ours ends.
_HELD_BACK_S = 60.0
# A restarted controller may refuse steps until its nodes have registered. Only launches before the first rank are
# repeated: a measurement stands.
PAUSES_S = (5.0, 20.0)
# After so many failed runs in a row, each launched several times, the session stops launching.
MOST_IN_A_ROW = 3
# Ends of a run's job that are independent of the run. Left out: what may come again, as a program that runs out of
# memory, and what people did, who cancelled or suspended the job.
RETRIED: frozenset[ProblemKind] = frozenset(("job_lost", "job_node_fail", "job_preempted", "started_again"))


@dataclass
class FailedLaunches:
    """The launches of a session that failed, and the pauses after them."""

    # The reason for each failed launch of a run, by its key
    reasons: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    in_a_row: int = 0  # how many runs could not be launched since the last one that could
    pause_s: float = 0.0
    note: str = ""  # the reason for the current pause, for people; else empty
    until: float = 0.0  # our clock at the end of the current pause

    @property
    def paused(self) -> bool:
        """True during a pause."""
        if time.monotonic() < self.until:
            return True
        self.note = ""
        return False

    def add(self, key: str, reason: str) -> bool:
        """Note the failed launch of a run; return True if that was its last try."""
        reasons = self.reasons[key]
        reasons.append(reason)
        if len(reasons) > len(PAUSES_S):
            self.in_a_row += 1
            return True
        self.pause(f"launched again in a moment: {reason}", PAUSES_S[len(reasons) - 1])
        return False

    def pause(self, reason: str, seconds: float = PAUSES_S[0]) -> None:
        """Begin a pause."""
        self.note, self.pause_s = reason, seconds
        self.until = time.monotonic() + seconds


# A launch that waits for Slurm's answer; it gives None if another job takes the nodes.
_Launching = tuple[PreparedRun, Lease | None, BackgroundCall[Active | None]]


@dataclass(kw_only=True)
class Schedule:
    """Launches runs in order, as many at a time as nodes and `llmbench_max_runs` allow."""

    settings: Settings
    launcher: Launcher
    slurm: Slurm
    # Called with each run that was launched, and with each that was given up
    begun: Callable[[Active], None]
    fail: Callable[[PreparedRun, Problem], None]
    say: Callable[[str], None]
    # Runs that wait, in order, and runs under way
    waiting: list[PreparedRun] = field(default_factory=list)
    active: list[Active] = field(default_factory=list)
    failed_launches: FailedLaunches = field(default_factory=FailedLaunches)
    # The session's nodes; None before they are there, and where each run has a job of its own
    pool: LeasePool | None = None
    holder: OurJob | None = None  # the job that holds them, if one does
    new_holds: int = 0  # how often the session may still ask for new nodes
    is_short: bool = False  # launches wait for new nodes: too few are left, or the job that held them is over
    _launching: list[_Launching] = field(default_factory=list)
    _first_run_over: bool = False
    _one_by_one: bool = False  # since Slurm has refused one too many
    _refused: dict[str, int] = field(default_factory=dict)

    @cached_property
    def full_queue(self) -> FullQueue:
        """Watches over submissions that are held back."""
        return FullQueue(self.slurm.queries, self.settings.max_wait_min, self.say, self.settings.slurm)

    @property
    def launching(self) -> list[PreparedRun]:
        """Runs whose launches wait for Slurm's answer."""
        return [run for run, _, _ in self._launching]

    @property
    def busy(self) -> bool:
        """True while any run waits, is being launched, or is under way."""
        return bool(self.waiting or self._launching or self.active)

    @property
    def needs_new_nodes(self) -> bool:
        """True if the next run needs more nodes than are left, and the last run on them is over."""
        return self.is_short and not self.active and not self._launching

    def launch_what_fits(self) -> None:
        """Launch the next runs for which there are nodes."""
        began = time.monotonic()
        for run in list(self.waiting):
            # Runs under way are looked after in between.
            if not self._may_launch() or time.monotonic() - began > SHORT_WAIT_S:
                return
            if run not in self.waiting:
                continue  # given up meanwhile
            before = (
                *self.waiting[: self.waiting.index(run)],
                *self.launching,
                *(active.run for active in self.active),
            )
            if any(other.spec.series == run.spec.series for other in before):
                continue
            lease = None
            if self.pool is not None:
                try:
                    nodes, group = run.topology.nodes, run.spec.group
                    lease = self.pool.acquire(nodes) if group is None else self.pool.acquire_group(group, nodes)
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
                    return  # in order: later, smaller runs would starve this one
                if lease is None:
                    continue  # another group's nodes may be free
            self.waiting.remove(run)
            self._launch(run, lease)

    def _may_launch(self) -> bool:
        """Wait a moment for the answers to other launches; return True if one more may begin."""
        # Steps are launched one after the other: each asks for the state of its job first.
        most = 1 if self._one_by_one or self.holder is not None else _SUBMITTED_AT_ONCE
        self.take_launched(0.0)
        while len(self._launching) >= most and time.monotonic() - self._launching[0][2].began < SHORT_WAIT_S:
            time.sleep(_LOOK_S)
            self.take_launched(0.0)
        begun = len(self.active) + len(self._launching)
        alone = self.settings.first_run_alone and begun > 0 and not self._first_run_over
        is_full = alone or (self.settings.max_runs is not None and begun >= self.settings.max_runs)
        return len(self._launching) < most and not is_full and not self.failed_launches.paused

    def take_launched(self, within_s: float | None) -> None:
        """Go on with launches that end within `within_s` seconds; None waits for them."""
        for launch in list(self._launching):
            run, lease, work = launch
            if work.is_over(within_s):
                self._launching.remove(launch)
                self._take(run, lease, work.result)

    def launch_again(self, run: PreparedRun, reason: str) -> None:
        """Try a failed launch again; or give the run up, or all of them."""
        failed, controller = self.failed_launches, self.slurm.controller
        if self.slurm.silent and controller.silent_s < SILENCE_S:  # every launch would fail now
            controller.say_silent(reason)
            failed.pause(f"Slurm does not answer: {reason}", QUIET_S)
            self.waiting.insert(0, run)
            return
        if not failed.add(run.key, reason):
            self.say(f"run {run.key} could not be launched: {reason}; once more in {failed.pause_s:.0f} s")
            self.waiting.insert(0, run)
            return
        times = len(failed.reasons[run.key])
        logs = str(run.place.folder / layout.LOGS)
        self.fail(run, Problem(kind="launch_failed", message=f"{reason} (launched {times} times)", log=logs))
        if failed.in_a_row >= MOST_IN_A_ROW:
            message = f"not launched: {failed.in_a_row} runs in a row could not be, the last ({run.key}): {reason}"
            self.say(f"no more runs are launched, as {failed.in_a_row} in a row failed to start: {reason}")
            self.fail_waiting(Problem(kind="launch_failed", message=message))

    def fail_waiting(self, problem: Problem) -> None:
        """Give up every run that waits."""
        while self.waiting:
            self.fail(self.waiting.pop(0), problem)

    def give_up_repeats(self, broken_run: RunSpec, problem: Problem) -> None:
        """Give up the runs that were to be judged together with a broken one."""
        for run in [run for run in self.waiting if run.spec.series == broken_run.series]:
            self.waiting.remove(run)
            message = f"not run: it was to be judged together with {broken_run.key}, which cannot be ({problem.kind})"
            #: problem not_repeated: a run of the same series cannot be judged
            self.fail(run, Problem(kind="not_repeated", message=message))

    def forget(self, active: Active, *, worked: bool = False) -> None:
        """Take a run's nodes back; `worked` if its ranks had started."""
        if active not in self.active:
            return  # the run was over, and its end is what broke
        self.active.remove(active)
        if isinstance(active.job, SlurmJob):
            self.slurm.let_go(active.job.ours)
        self._free(active.lease)
        if self._one_by_one:
            self.failed_launches.until = 0.0
        if worked:
            self.failed_launches.in_a_row = 0
            self._first_run_over = True

    def _launch(self, run: PreparedRun, lease: Lease | None) -> None:
        if self.settings.cluster != "slurm":
            self._take(run, lease, lambda: self._start(run, lease))
            return
        # Slurm may take minutes to answer: runs under way are looked after meanwhile.
        work = BackgroundCall(lambda: self._start(run, lease), "launch")
        self._launching.append((run, lease, work))

    def _start(self, run: PreparedRun, lease: Lease | None) -> Active | None:
        clock, marks = UnixClock(), self._marks()
        submitted = clock.now()
        if marks is not None and marks.preempted:
            return None
        job = self.launcher.start_run(run, lease, self.holder)
        # A launch has to have had an answer of Slurm: so there is one about what was before it.
        marks = marks or self._marks() or JobMarks()
        return Active(run=run, job=job, lease=lease, submitted=submitted, clock=clock, marks=marks)

    def _take(self, run: PreparedRun, lease: Lease | None, result: Callable[[], Active | None]) -> None:
        """Follow a run that was launched, or do what the failure of its launch asks for."""
        try:
            active = result()
        except NotYetError as error:
            self._free(lease)
            self._hold_back(run, error)
            return
        except NoAnswerError as error:
            self._free(lease)
            self.slurm.refresh(SHORT_WAIT_S)
            self.launch_again(run, str(error))
            return
        except Exception as error:  # noqa: BLE001 - a run's border
            self._free(lease)
            # Slurm refuses a run as it refuses nodes to hold.
            kind: ProblemKind = "allocation" if isinstance(error, ClusterError) else "launch_failed"
            known = isinstance(error, ClusterError | OSError)
            self.fail(run, Problem(kind=kind, message=str(error)) if known else harness_problem())
            return
        if active is None:
            self._free(lease)
            self.waiting.insert(0, run)
            self.failed_launches.pause("a job of higher priority takes the nodes")
            return
        self.full_queue.note_accepted(run.key)
        self.active.append(active)
        self.begun(active)

    def _hold_back(self, run: PreparedRun, error: NotYetError) -> None:
        """Launch a run again after a while; a run refused by a full queue also as soon as one of our jobs has ended."""
        if not isinstance(error, QueueFullError):
            self.failed_launches.pause(str(error), QUIET_S)
            self.waiting.insert(0, run)
            return
        ours = len(self.active) + len(self._launching)
        if reason := self.full_queue.note_refused(run.key, error, ours=ours):
            self.fail(run, Problem(kind="allocation", message=reason))
            return
        self._one_by_one = True
        self.failed_launches.pause(str(error), _HELD_BACK_S if ours else QUIET_S)
        # Several may have been under way: they keep their order.
        number = self._refused.setdefault(run.key, len(self._refused))
        earlier = sum(self._refused.get(other.key, number) < number for other in self.waiting)
        self.waiting.insert(earlier, run)

    def _marks(self) -> JobMarks | None:
        """Past events of the job that holds the nodes; empty if each run will have a job of its own."""
        return JobMarks() if self.holder is None else self.slurm.marks(self.holder, recent=True)

    def _free(self, lease: Lease | None) -> None:
        if self.pool is not None and lease is not None:
            self.pool.release(lease)


def harness_problem() -> Problem:
    """The problem of a run over which our own code broke, with the traceback of the exception that is handled."""
    #: problem harness: an error of this package, with its traceback
    error = "".join(traceback.format_exception_only(sys.exception())).strip().splitlines()[-1]
    return Problem(kind="harness", message=f"the runner broke: {error}\n{traceback.format_exc()}")


@dataclass
class Retries:
    """Decides which runs are made once more after a fault of the infrastructure, and keeps their attempts."""

    most: int  # further attempts of one run, at most
    session: Session
    write: Callable[[Path, RunRecord], object]
    # Kind and message of each attempt that another one followed, by the run's key
    superseded: dict[str, tuple[str, ...]] = field(default_factory=lambda: defaultdict(tuple))

    def wants(self, key: str, problem: Problem | None) -> bool:
        """True if a run that ended with this problem is made once more."""
        return problem is not None and problem.kind in RETRIED and len(self.superseded[key]) < self.most

    def supersede(self, record: RunRecord, problem: Problem) -> str:
        """Put an attempt aside, with its record; return a line for people."""
        key = record.key
        folder = put_aside(self.session, self.session.run_folder(key))
        if folder is not None:
            self.write(folder / layout.RECORD, record)
        self.superseded[key] += (f"{problem.kind}: {problem.message}",)
        return (
            f"run {key} is made again, retry {len(self.superseded[key])} of {self.most}: {problem.kind}: "
            f"{problem.message}; the attempt is in {folder}"
        )


class Repeats:
    """Hands runs from the thread that asks for them to the runner's; after its end, it hands them back."""

    def __init__(self) -> None:
        self._asked: list[RunSpec] = []
        self._over = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> bool:
        """True while some of them wait for the runner."""
        return bool(self._asked)

    def ask(self, runs: Sequence[RunSpec]) -> Sequence[RunSpec]:
        """Ask for runs; return those that come too late, because the runner is at its end."""
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
        """Accept no more requests, and return those that are left."""
        with self._lock:
            self._over = True
            return self._asked


def no_time_for(runs: Sequence[RunSpec], finished: Mapping[str, RunSummary], ends_at: float) -> Problem | None:
    """The problem of `runs` of one series that would not end before the job that holds the nodes; else None."""
    took_s = max(summary.took_s for summary in finished.values() if summary.recipe == runs[0].recipe.name)
    left_s = max(ends_at - time.time(), 0.0)
    if len(runs) * took_s < left_s:
        return None
    message = (
        f"{len(runs)} more would take {len(runs) * took_s / 60:.1f} min, and the job that holds the nodes ends in "
        f"{left_s / 60:.1f} min (give a longer --time)"
    )
    return Problem(kind="not_repeated", message=message)
