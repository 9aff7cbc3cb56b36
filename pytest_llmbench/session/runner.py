"""The runner: one thread that allocates, launches, watches and concludes every run of a session."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster import executors
from pytest_llmbench.cluster.allocation import (
    Allocation,
    ExistingJob,
    HeldJob,
    JobEndedError,
    JobPerRun,
    Waiting,
)
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import Job, end_all
from pytest_llmbench.cluster.lease import Lease, LeasePool
from pytest_llmbench.cluster.quarantine import refuse_quarantined, remove_bad
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.slurm.aside import Aside
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, ignored_options
from pytest_llmbench.cluster.slurm.queue import GLANCE_S, JobMarks, JobStatus, Slurm
from pytest_llmbench.cluster.this_host import ThisHost
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import JobTraces, Problem, RunRecord, Timings
from pytest_llmbench.session.active import Active, RunView, view_of
from pytest_llmbench.session.ending.causes import JOB_ENDS, Outcome
from pytest_llmbench.session.ending.conclude import findings, identity_of
from pytest_llmbench.session.following import Ended, Follower
from pytest_llmbench.session.gate import gate
from pytest_llmbench.session.keeper import Keeper
from pytest_llmbench.session.launch import Launcher
from pytest_llmbench.session.launches import Launches
from pytest_llmbench.session.probes import ProbeLauncher
from pytest_llmbench.session.script.prepared import PreparedRun, prepare
from pytest_llmbench.session.script.requests import holder_request
from pytest_llmbench.session.validation import Validator, health_record

_TICK_S = 0.2
# How long the end of a session waits for runs: on this machine to end, on Slurm for its commands to answer.
_STOP_WAIT_S = 60.0
_SLURM_STOP_WAIT_S = 10.0


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
class _State:
    """State of the thread; the views are replaced whole, so that readers need no lock."""

    plan: Plan = field(default_factory=lambda: Plan(runs=()))
    waiting: list[PreparedRun] = field(default_factory=list)
    active: list[Active] = field(default_factory=list)
    launching: _Launching | None = None
    launches: Launches = field(default_factory=Launches)
    first_run_over: bool = False
    views: tuple[RunView, ...] = ()
    allocation_note: str = ""
    checking: str = ""


class Runner(Keeper):
    """Runs every run of a session, as many at a time as nodes and `--max-runs` allow."""

    def __init__(self, settings: Settings, session: Session) -> None:
        super().__init__(settings.system)
        self._settings = settings
        self._session = session
        self._state = _State()
        self._stopping = threading.Event()
        self._slurm = Slurm(self.notes)
        self._heartbeat = Heartbeat(session.folder)
        self._launcher = Launcher(settings, session, self._heartbeat, self._slurm)
        self._follower = Follower(settings, session, self._slurm, self.notes.append)
        self._pool: LeasePool | None = None
        self._allocation: Allocation = JobPerRun()
        self._thread: threading.Thread | None = None

    def start(self, plan: Plan) -> None:
        """Take on checks and runs. In the debug cluster they happen here and now, in this thread."""
        executors.load()
        make_folder(self._session.folder)
        self._heartbeat.start()
        self._state.plan = plan
        for run in plan.runs:
            prepared = prepare(run, self._settings, self._session)
            if isinstance(prepared, Problem):
                self._publish(run, problem=prepared)
            else:
                self._state.waiting.append(prepared)
        if self._settings.cluster == "debug":
            self._work()
            return
        self._thread = threading.Thread(target=self._work, name="llmbench-runner", daemon=True)
        self._thread.start()

    def begin_no_more(self) -> None:
        """Begin no run, and return at once: `stop` follows."""
        self._stopping.set()
        # A little less than `stop` waits, so that there is an end in order after a command that was cut off.
        self._slurm.end_within(0.8 * self._stop_wait_s)

    def stop(self, say: Callable[[str], None] | None = None) -> None:
        """End every run that is not finished, give the nodes back, fall silent. Safe to call twice."""
        self.begin_no_more()
        deadline = time.monotonic() + self._stop_wait_s
        thread, self._thread = self._thread, None
        while thread is not None and thread.is_alive() and time.monotonic() < deadline:
            thread.join(_TICK_S)
            while self.notes and say is not None:
                say(self.notes.popleft())
        if thread is not None and thread.is_alive():
            self.notes.append(
                "the runs did not end in time; their jobs end themselves within a minute: see squeue for the comment "
                f"{self._session.token}"
            )
        self._heartbeat.stop()

    @property
    def _stop_wait_s(self) -> float:
        return _SLURM_STOP_WAIT_S if self._settings.cluster == "slurm" else _STOP_WAIT_S

    @property
    def views(self) -> tuple[RunView, ...]:
        """How every unfinished run stands."""
        return self._state.views

    @property
    def job_id(self) -> str | None:
        """The Slurm job that holds the session's nodes, if one does."""
        return self._allocation.job_id

    def _work(self) -> None:
        try:
            if self._busy:
                self._allocate()
            while self._busy and not self._stopping.is_set():
                self._tick()
                self._stopping.wait(_TICK_S)
            self._give_up(Problem(kind="session_ended", message="the session ended before this run did"))
        except JobEndedError as error:
            self._give_up(Problem(kind="allocation", message=str(error)), error.status)
        except ClusterError as error:
            self._give_up(Problem(kind="allocation", message=str(error)))
        except Exception:  # noqa: BLE001 - the thread's border: whatever it is, every test must hear of it
            self._give_up(_broken())
        finally:
            self._release()

    @property
    def _busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._state.waiting or self._state.launching or self._state.active or self._unchecked)

    @property
    def _unchecked(self) -> list[str]:
        return [name for name in self._state.plan.checks if name not in self.checks]

    def _allocate(self) -> None:
        self._allocation = self._choose_allocation()
        if self._settings.cluster == "slurm" and (ignored := ignored_options()):
            self.notes.append(f"{', '.join(ignored)} of the environment: ignored; use the options of pytest")
        self._allocation.start()
        if isinstance(self._allocation, HeldJob):
            self.notes.append(f"Slurm job {self._allocation.job_id} asks for {self._settings.nodes} nodes")
        self.notes.extend([self._allocation.note] if self._allocation.note else [])

    def _choose_allocation(self) -> Allocation:
        if self._settings.cluster != "slurm":
            return ThisHost()
        if existing_allocation() is not None:
            return ExistingJob(self._settings, self._slurm)
        if self._settings.allocation == "run":
            return JobPerRun()
        plan = self._state.plan.model_copy(update={"runs": tuple(run.spec for run in self._state.waiting)})
        request = holder_request(plan, self._settings, self._session)
        return HeldJob(request, self._heartbeat, self._slurm)

    def _tick(self) -> None:
        self._take_launched(0.0)
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):
            if not self._state.allocation_note and self._settings.cluster != "slurm":
                self.notes.append(f"waiting: {hosts.reason}")
            self._state.allocation_note = hosts.reason
        else:
            if hosts is not None and self._pool is None:
                self._pool = self._take_over(hosts)
            self._state.allocation_note = self._state.launches.note
            self._launch_what_fits()
        for active in list(self._state.active):
            try:
                if (ended := self._follower.look_after(active)) is not None:
                    self._take_end(active, ended)
            except Exception:  # noqa: BLE001 - a run's border: what breaks over one must not end the others
                self._break(active)
        self._state.views = self._look()

    def _take_over(self, hosts: tuple[str, ...]) -> LeasePool:
        """Validate the nodes that are there now, and make leases of those that may train."""
        self._state.allocation_note = ""
        refuse_quarantined(hosts, self._settings)
        job = f"Slurm job {self._allocation.job_id} holds " if self._allocation.job_id else "measuring on "
        self.notes.append(f"{job}{', '.join(hosts)}")
        fit = self._validate(hosts) if self._state.plan.checks else hosts
        pool = LeasePool(fit, out=[host for host in hosts if host not in fit])
        if self._settings.left_over:
            self.left_over = pool.beyond_groups(self._settings.nodes_per_run or 1)
        if self.left_over:
            left = ", ".join(self.left_over)
            self.notes.append(f"NOT TESTED, too few for a group of {self._settings.nodes_per_run}: {left}")
        return pool

    def _validate(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Run every check; return the nodes that runs may have."""
        plan, probes = self._state.plan, ProbeLauncher(self._settings, self._session, self._heartbeat, self._slurm)
        validator = Validator(
            self._settings,
            self._session,
            gate=plan.gate,
            start=lambda probe, folder, on: probes.start(probe, folder, on, self._allocation.job_id),
            look=self._look_while_checking,
            keep=self.keep_check,
            say=self._say_check,
        )
        validator.run(plan.checks, hosts, self._allocation.job_id)
        self._state.checking = ""
        self.unfit = validator.out
        self.notes.extend(remove_bad(validator.bad, hosts, self._settings, self._session))
        if not plan.gate:
            return hosts
        opened = gate([run.spec for run in self._state.waiting], validator, hosts, self._settings)
        for run, why in opened.stopped:
            self._state.waiting = [other for other in self._state.waiting if other.spec is not run]
            self._publish(run, problem=Problem(kind="gated", message=why))
        self.notes.extend([opened.note] if opened.note else [])
        return opened.fit

    def _look_while_checking(self) -> None:
        if self._stopping.is_set():
            raise ClusterError("the session ended before this check did")
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):  # it was suspended: what is measured across a pause is no speed of the hardware
            raise ClusterError(f"the nodes went away while they were checked: {hosts.reason}")

    def _say_check(self, text: str) -> None:
        self._state.checking = text
        self._state.views = self._look()

    def _launch_what_fits(self) -> None:
        if self._state.launching is not None or self._state.launches.paused:
            return
        began = time.monotonic()
        for run in list(self._state.waiting):
            # Those that run are looked after in between.
            if self._is_full or time.monotonic() - began > GLANCE_S:
                return
            lease = None
            if self._pool is not None:
                try:
                    lease = self._lease(run, self._pool)
                except ClusterError as error:
                    self._state.waiting.remove(run)
                    self._publish(run.spec, problem=Problem(kind="allocation", message=str(error)))
                    continue
                if lease is None and run.spec.group is None:
                    return  # in order: a later, smaller run must not starve this one
                if lease is None:
                    continue  # another group's nodes may be free
            self._state.waiting.remove(run)
            if not self._launch(run, lease):
                return

    @property
    def _is_full(self) -> bool:
        settings, active = self._settings, self._state.active
        alone = settings.first_run_alone and bool(active) and not self._state.first_run_over
        return alone or (settings.max_runs is not None and len(active) >= settings.max_runs)

    def _lease(self, run: PreparedRun, pool: LeasePool) -> Lease | None:
        nodes, group = run.topology.nodes, run.spec.group
        return pool.acquire(nodes) if group is None else pool.acquire_group(group, nodes)

    def _launch(self, run: PreparedRun, lease: Lease | None) -> bool:
        """Launch a run; return whether others may follow at once."""
        if self._settings.cluster != "slurm":
            return self._take(run, lease, lambda: self._start(run, lease))
        # Slurm may take minutes to answer, or never do: runs under way are looked after meanwhile.
        work = Aside(lambda: self._start(run, lease), "launch")
        if work.done(GLANCE_S):
            return self._take(run, lease, work.result)
        self._state.launching = _Launching(run=run, lease=lease, work=work)
        return False

    def _start(self, run: PreparedRun, lease: Lease | None) -> _Launched:
        marks, submitted, at = self._marks(), time.time(), time.monotonic()
        taken = marks is not None and bool(marks.preempted)
        job = None if taken else self._launcher.start(run, lease, self._allocation.job_id)
        # A launch has to have had an answer of Slurm: so there is one about what was before it.
        return _Launched(job=job, marks=marks or self._marks() or JobMarks(), submitted=submitted, at=at)

    def _take_launched(self, within_s: float | None) -> None:
        """Go on with a launch that took long, if it is over."""
        launching = self._state.launching
        if launching is not None and launching.work.done(within_s):
            self._state.launching = None
            self._take(launching.run, launching.lease, launching.work.result)

    def _take(self, run: PreparedRun, lease: Lease | None, result: Callable[[], _Launched]) -> bool:
        """Take on what a launch came to; return whether others may follow at once."""
        try:
            launched = result()
        except NoAnswerError as error:
            self._free(lease)
            self._launch_again(run, str(error))
            return False
        except (ClusterError, OSError) as error:
            self._free(lease)
            self._publish(run.spec, problem=Problem(kind="launch_failed", message=str(error)))
            return True
        except Exception:  # noqa: BLE001 - a run's border
            self._free(lease)
            self._publish(run.spec, problem=_broken())
            return True
        job = launched.job
        if job is None:
            self._free(lease)
            self._state.waiting.insert(0, run)
            self._state.launches.pause("a job of higher priority takes the nodes")
            return False
        self.notes.extend([job.note] if job.note else [])
        active = Active(
            run=run, job=job, lease=lease, submitted=launched.submitted, launched=launched.at, marks=launched.marks
        )
        self._state.active.append(active)
        self.write(run.place.folder / "job.json", self._traces(active))
        return True

    def _marks(self) -> JobMarks | None:
        """Past events of the job that holds the nodes; empty if each run will have a job of its own."""
        job_id = self._allocation.job_id
        return JobMarks() if job_id is None else self._slurm.marks(job_id)

    def _launch_again(self, run: PreparedRun, why: str) -> None:
        """A launch came to nothing, and no rank has started: have another try, or give the run up, or all of them."""
        launches = self._state.launches
        if not launches.failed(run.key, why):
            self.notes.append(f"run {run.key} could not be launched: {why}; once more in {launches.pause_s:.0f} s")
            self._state.waiting.insert(0, run)
            return
        times = len(launches.reasons[run.key])
        logs = str(run.place.folder / "logs")
        message = f"{why} (launched {times} times)"
        self._publish(run.spec, problem=Problem(kind="launch_failed", message=message, log=logs))
        if launches.hopeless:
            message = f"not launched: {launches.in_a_row} runs in a row could not be, the last ({run.key}): {why}"
            self.notes.append(f"no more runs are launched: {launches.in_a_row} in a row could not be: {why}")
            while self._state.waiting:
                self._publish(self._state.waiting.pop(0).spec, problem=Problem(kind="launch_failed", message=message))

    def _traces(self, active: Active) -> JobTraces:
        """Data to find this run again from another process."""
        job = active.job
        return JobTraces(
            session=self._session.id, key=active.run.key, token=self._session.token, cluster=self._settings.cluster,
            allocation=self._allocation.job_id, job_id=job.job_id, hosts=job.hosts,
            command=job.command, submitted=active.submitted,
        )  # fmt: skip

    def _take_end(self, active: Active, ended: Ended) -> None:
        """Publish what a run came to, or launch it again where nothing of it started."""
        self._forget(active)
        if ended.outcome is None:
            self._launch_again(active.run, ended.never_began)
            return
        self._state.launches.worked()
        self._state.first_run_over = True
        self._publish(active.run.spec, active=active, outcome=ended.outcome)

    def _break(self, active: Active) -> None:
        """Give up a run over which we broke ourselves."""
        problem = _broken()
        self._follower.end(active)
        self._forget(active)
        self._publish(active.run.spec, active=active, problem=problem)

    def _forget(self, active: Active) -> None:
        self._state.active.remove(active)
        self._free(active.lease)

    def _free(self, lease: Lease | None) -> None:
        if self._pool is not None and lease is not None:
            self._pool.release(lease)

    def _give_up(self, problem: Problem, ended: JobStatus | None = None) -> None:
        """End what runs and record why, for every run that has no record yet.

        Args:
            problem: why.
            ended: how the job ended that held the nodes of what runs, if it is that.
        """
        self._take_launched(None)  # each command has an end, and a soon one where somebody waits for ours
        active = list(self._state.active)
        self._end_all(active)
        for each in active:
            if (
                ended is not None
                and each.watch is not None
                and (ended.state in JOB_ENDS or self._follower.is_done(each))
            ):
                self._take_end(each, self._follower.finish(each, ended))
                continue
            self._forget(each)
            self._publish(each.run.spec, active=each, problem=problem)
        while self._state.waiting:
            self._publish(self._state.waiting.pop(0).spec, problem=problem)
        for name in self._unchecked:
            report = Report(problem=f"{problem.kind}: {problem.message}")
            check = get_check(name)
            job_id = self._allocation.job_id
            self.keep_check(health_record(check, self._settings, self._session, report=report, hosts=(), job_id=job_id))
        self._state.views = ()

    def _end_all(self, runs: Sequence[Active]) -> None:
        """End runs side by side: jobs of their own by one command, steps and processes each by a signal."""
        try:
            end_all([active.job for active in runs], self._slurm)
        except ClusterError as error:
            self.notes.append(f"runs could not be cancelled: {error}; they end themselves within a minute")

    def _release(self) -> None:
        try:
            self._allocation.release()
            if strays := self._slurm.cancel_strays():
                self.notes.append(f"cancelled: job {', '.join(strays)}, which sbatch had not owned up to")
        except ClusterError as error:
            self.notes.append(
                f"Slurm job {self._allocation.job_id} could not be cancelled: {error}; it ends itself soon"
            )

    def _publish(
        self,
        run: RunSpec,
        *,
        active: Active | None = None,
        outcome: Outcome | None = None,
        problem: Problem | None = None,
    ) -> None:
        """Make a run's record final: judged by its outcome, or broken by a problem."""
        told = findings(outcome, self._settings) if outcome else {"problem": problem}
        identity = identity_of(run, self._settings.topology(run.recipe), self._settings, self._session)
        failed = tuple(self._state.launches.reasons.get(run.key, ()))
        self.keep(RunRecord(**{**identity, **_traces_of(active), "failed_launches": failed, **told}))

    def _look(self) -> tuple[RunView, ...]:
        note, launching = self._state.allocation_note, self._state.launching
        checks = [RunView(key="checks", state="checking", detail=self._state.checking)] if self._state.checking else []
        if self._unchecked and note:
            checks = [RunView(key="checks", state="waiting", detail=note)]
        return (
            *checks,
            *(view_of(active) for active in self._state.active),
            *([RunView(key=launching.run.key, state="waiting", detail="for Slurm to answer")] if launching else []),
            *(RunView(key=run.key, state="waiting", detail=note) for run in self._state.waiting),
        )


def _broken() -> Problem:
    return Problem(kind="harness", message=f"the runner broke:\n{traceback.format_exc()}")


def _traces_of(active: Active | None) -> dict[str, Any]:
    """Traces of a launched run in Slurm and in time; empty for one that never was."""
    if active is None:
        return {}
    job = active.job
    timings = Timings(submitted=active.submitted, started=active.started, ended=time.time())
    return {"job_id": job.job_id, "hosts": job.hosts, "command": job.command, "timings": timings}
