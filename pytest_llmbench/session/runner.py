"""The runner: one thread that allocates, launches, watches and concludes every run of a session."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster import executors
from pytest_llmbench.cluster.allocation import Allocation, ExistingJob, HeldJob, JobEndedError, Waiting
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import end_all
from pytest_llmbench.cluster.lease import LeasePool
from pytest_llmbench.cluster.quarantine import refuse_quarantined, remove_bad
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.slurm.commands import ignored_options
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobStatus
from pytest_llmbench.cluster.this_host import ThisHost
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import JobTraces, Problem, RunRecord, Timings
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.active import Active, RunView, view_of
from pytest_llmbench.session.ending.causes import JOB_ENDS, Outcome
from pytest_llmbench.session.ending.conclude import findings, identity_of
from pytest_llmbench.session.following import Ended, Follower
from pytest_llmbench.session.gate import gate
from pytest_llmbench.session.keeper import Keeper
from pytest_llmbench.session.launch import Launcher
from pytest_llmbench.session.schedule import Repeats, Schedule, broken, no_time_for
from pytest_llmbench.session.script.prepared import prepare
from pytest_llmbench.session.script.requests import holder_request
from pytest_llmbench.session.validation import Validator, health_record

_TICK_S = 0.2
#: problem session_ended: pytest ended, or was killed, before the run did
_ENDED = Problem(kind="session_ended", message="the session ended before this run did")
# How long the end of a session waits for runs: on this machine to end, on Slurm for its commands to answer.
_STOP_WAIT_S = 60.0
_SLURM_STOP_WAIT_S = 10.0


class Runner:
    """Runs every run of a session, as many at a time as nodes and `--max-runs` allow; the keeper has what it tells."""

    def __init__(self, settings: Settings, session: Session, keeper: Keeper) -> None:
        self._settings = settings
        self._session = session
        self._keeper = keeper
        self._plan = Plan(runs=())
        self._allocation_note = ""
        self._checking = ""
        self._stopping = threading.Event()
        self._slurm = Slurm(keeper.notes)
        self._heartbeat = Heartbeat(session.folder)
        self._launcher = Launcher(settings, session, self._heartbeat, self._slurm)
        self._follower = Follower(settings, session, self._slurm, keeper.notes.append)
        self._schedule = Schedule(
            settings=settings,
            launcher=self._launcher,
            slurm=self._slurm,
            begun=self._note_begun,
            fail=lambda run, problem: self._publish(run.spec, problem=problem),
            say=keeper.notes.append,
        )
        self._allocation: Allocation = Allocation()
        self._thread: threading.Thread | None = None
        self._may_repeat = settings.rerun and settings.cluster != "debug"
        self._repeats = Repeats()
        self._ends_at = math.inf

    def start(self, plan: Plan) -> None:
        """Take on checks and runs. In the debug cluster they happen here and now, in this thread."""
        executors.load()
        make_folder(self._session.folder)
        self._heartbeat.start()
        self._plan = plan
        self._may_repeat = self._may_repeat and bool(plan.runs)
        for run in plan.runs:
            self._take_on(run)
        if self._settings.cluster == "debug":
            self._work()
            return
        self._thread = threading.Thread(target=self._work, name="llmbench-runner", daemon=True)
        self._thread.start()

    def repeat(self, runs: Sequence[RunSpec]) -> None:
        """Take on further runs, which get a record whatever happens. In the debug cluster they happen here and now."""
        for run in self._repeats.ask(runs):
            self._publish(run, problem=_ENDED)
        if self._settings.cluster == "debug":
            self._work()

    def expect_no_repeats(self) -> None:
        """Give the nodes back as soon as all runs are over."""
        self._may_repeat = False

    def begin_no_more(self) -> None:
        """Begin no run, and return at once: `stop` follows."""
        self._stopping.set()
        # A little less than `stop` waits, so that there is an end in order after a command that was cut off.
        self._slurm.end_within(0.8 * self._stop_wait_s)

    def stop(self, say: Callable[[str], None] | None = None) -> None:
        """End every run that is not finished, give the nodes back, fall silent. Safe to call twice.

        If that takes longer than a moment, `say` shows the reason.
        """
        self.begin_no_more()
        deadline = time.monotonic() + self._stop_wait_s
        thread, self._thread = self._thread, None
        while thread is not None and thread.is_alive() and time.monotonic() < deadline:
            thread.join(_TICK_S)
            while self._keeper.notes and say is not None:
                say(self._keeper.notes.popleft())
        if thread is not None and thread.is_alive():
            self._keeper.notes.append(
                "the runs did not end in time; their jobs end themselves within a minute: see squeue for the comment "
                f"{self._session.token}"
            )
        self._heartbeat.stop()

    @property
    def _stop_wait_s(self) -> float:
        return _SLURM_STOP_WAIT_S if self._settings.cluster == "slurm" else _STOP_WAIT_S

    def _work(self) -> None:
        try:
            if self._busy:
                self._allocate()
            while (self._busy or self._may_repeat) and not self._stopping.is_set():
                self._tick()
                self._stopping.wait(_TICK_S)
            self._give_up(_ENDED)
        except JobEndedError as error:
            self._give_up(Problem(kind="allocation", message=str(error)), error.status)
        except ClusterError as error:
            self._give_up(Problem(kind="allocation", message=str(error)))
        except Exception:  # noqa: BLE001 - the thread's border: whatever it is, every test must hear of it
            self._give_up(broken())
        finally:
            # In the debug cluster, it is called again for more.
            if self._settings.cluster != "debug":
                for run in self._repeats.end():
                    self._publish(run, problem=_ENDED)
            self._release()

    def _take_on(self, run: RunSpec) -> None:
        prepared = prepare(run, self._settings, self._session)
        if isinstance(prepared, Problem):
            self._publish(run, problem=prepared)
        else:
            self._schedule.waiting.append(prepared)

    def _take_on_repeats(self) -> None:
        """Take on the further runs that were asked for, if the job that holds the nodes lasts long enough."""
        for runs in self._repeats.take():
            if (problem := no_time_for(runs, self._keeper.runs, self._ends_at)) is None:
                for run in runs:
                    self._take_on(run)
            else:
                for run in runs:
                    self._publish(run, problem=problem)

    @property
    def _busy(self) -> bool:
        """Whether anything is left to do."""
        return self._schedule.busy or bool(self._unchecked) or self._repeats.waiting

    @property
    def _unchecked(self) -> list[str]:
        checked = self._keeper.checks
        return [name for name in self._plan.checks if name not in checked]

    def _allocate(self) -> None:
        self._allocation = self._choose_allocation()
        if self._settings.cluster == "slurm" and (ignored := ignored_options()):
            self._keeper.notes.append(f"{', '.join(ignored)} of the environment: ignored; use the options of pytest")
        self._allocation.start()
        self._schedule.job_id = self._allocation.job_id
        if isinstance(self._allocation, HeldJob):
            self._keeper.notes.append(f"Slurm job {self._allocation.job_id} asks for {self._settings.nodes} nodes")
        self._keeper.notes.extend([self._allocation.note] if self._allocation.note else [])

    def _choose_allocation(self) -> Allocation:
        if self._settings.cluster != "slurm":
            return ThisHost()
        if existing_allocation() is not None:
            return ExistingJob(self._settings, self._slurm)
        if self._settings.allocation == "run":
            return Allocation()
        plan = self._plan.model_copy(update={"runs": tuple(run.spec for run in self._schedule.waiting)})
        request = holder_request(plan, self._settings, self._session)
        return HeldJob(request, self._heartbeat, self._slurm)

    def _tick(self) -> None:
        self._take_on_repeats()
        self._schedule.take_launched(0.0)
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):
            if not self._allocation_note and self._settings.cluster != "slurm":
                self._keeper.notes.append(f"waiting: {hosts.reason}")
            self._allocation_note = hosts.reason
        else:
            if hosts is not None and self._schedule.pool is None:
                self._schedule.pool = self._take_over(hosts)
            self._allocation_note = self._schedule.launches.note
            self._schedule.launch_what_fits()
        for active in list(self._schedule.active):
            try:
                if (ended := self._follower.look_after(active)) is not None:
                    self._take_end(active, ended)
            except Exception:  # noqa: BLE001 - a run's border: what breaks over one must not end the others
                self._break(active)
        self._keeper.views = self._look()

    def _take_over(self, hosts: tuple[str, ...]) -> LeasePool:
        """Validate the nodes that are there now, and make leases of those that may train."""
        self._allocation_note = ""
        self._ends_at = self._allocation.ends_at()
        refuse_quarantined(hosts, self._settings)
        job = f"Slurm job {self._allocation.job_id} holds " if self._allocation.job_id else "measuring on "
        self._keeper.notes.append(f"{job}{', '.join(hosts)}")
        fit = self._validate(hosts) if self._plan.checks else hosts
        pool = LeasePool(fit, out=[host for host in hosts if host not in fit])
        if self._settings.left_over:
            self._keeper.left_over = pool.beyond_groups(self._settings.nodes_per_run or 1)
        if self._keeper.left_over:
            left = ", ".join(self._keeper.left_over)
            self._keeper.notes.append(f"NOT TESTED, too few for a group of {self._settings.nodes_per_run}: {left}")
        return pool

    def _validate(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Run every check; return the nodes that runs may have."""
        plan, launcher = self._plan, self._launcher
        validator = Validator(
            settings=self._settings,
            session=self._session,
            gate=plan.gate,
            start=lambda probe, folder, on: launcher.start_probe(probe, folder, on, self._allocation.job_id),
            look=self._look_while_checking,
            keep=self._keeper.keep,
            say=self._say_check,
        )
        validator.run(plan.checks, hosts, self._allocation.job_id)
        self._checking = ""
        self._keeper.unfit = validator.out
        self._keeper.notes.extend(remove_bad(validator.bad, hosts, self._settings, self._session))
        if not plan.gate:
            return hosts
        opened = gate([run.spec for run in self._schedule.waiting], validator, hosts, self._settings)
        for run, why in opened.stopped:
            self._schedule.waiting = [other for other in self._schedule.waiting if other.spec is not run]
            #: problem gated: too few nodes passed the checks; the run is a SKIP that names the check and the node
            self._publish(run, problem=Problem(kind="gated", message=why))
        self._keeper.notes.extend([opened.note] if opened.note else [])
        return opened.fit

    def _look_while_checking(self) -> None:
        if self._stopping.is_set():
            raise ClusterError("the session ended before this check did")
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):  # it was suspended: what is measured across a pause is no speed of the hardware
            raise ClusterError(f"the nodes went away while they were checked: {hosts.reason}")

    def _say_check(self, text: str) -> None:
        self._checking = text
        self._keeper.views = self._look()

    def _note_begun(self, active: Active) -> None:
        """Write what it takes to find a run again from another process."""
        job = active.job
        self._keeper.notes.extend([job.note] if job.note else [])
        traces = JobTraces(
            session=self._session.id, key=active.run.key, token=self._session.token, cluster=self._settings.cluster,
            allocation=self._allocation.job_id, job_id=job.job_id, hosts=job.hosts,
            command=job.command, submitted=active.submitted,
        )  # fmt: skip
        self._keeper.write(active.run.place.folder / layout.JOB, traces)

    def _take_end(self, active: Active, ended: Ended) -> None:
        """Publish what a run came to, or launch it again where nothing of it started."""
        self._schedule.forget(active, worked=ended.outcome is not None)
        if ended.outcome is None:
            self._schedule.launch_again(active.run, ended.never_began)
            return
        self._publish(active.run.spec, active=active, outcome=ended.outcome)

    def _break(self, active: Active) -> None:
        """Give up a run over which we broke ourselves."""
        problem = broken()
        self._follower.end(active)
        self._schedule.forget(active)
        self._publish(active.run.spec, active=active, problem=problem)

    def _give_up(self, problem: Problem, ended: JobStatus | None = None) -> None:
        """End what runs and record why, for every run that has no record yet.

        The reason may be that the job `ended` that held the nodes of what runs.
        """
        self._schedule.take_launched(None)  # each command has an end, and a soon one where somebody waits for ours
        active = list(self._schedule.active)
        self._end_all(active)
        for each in active:
            if (
                ended is not None
                and each.watch is not None
                and (ended.state in JOB_ENDS or self._follower.is_done(each))
            ):
                self._take_end(each, self._follower.finish(each, ended))
                continue
            self._schedule.forget(each)
            self._publish(each.run.spec, active=each, problem=problem)
        self._schedule.fail_waiting(problem)
        for name in self._unchecked:
            report, job_id = Report(problem=f"{problem.kind}: {problem.message}"), self._allocation.job_id
            self._keeper.keep(
                health_record(get_check(name), self._settings, self._session, report=report, job_id=job_id)
            )
        self._keeper.views = ()

    def _end_all(self, runs: Sequence[Active]) -> None:
        """End runs side by side: jobs of their own by one command, steps and processes each by a signal."""
        try:
            end_all([active.job for active in runs], self._slurm)
        except ClusterError as error:
            self._keeper.notes.append(f"runs could not be cancelled: {error}; they end themselves within a minute")

    def _release(self) -> None:
        try:
            self._allocation.release()
            if strays := self._slurm.cancel_strays():
                self._keeper.notes.append(f"cancelled: job {', '.join(strays)}, which sbatch had not owned up to")
        except ClusterError as error:
            self._keeper.notes.append(
                f"Slurm job {self._allocation.job_id} could not be cancelled: {error}; it ends itself soon"
            )

    def _publish(
        self, run: RunSpec, *, active: Active | None = None, outcome: Outcome | None = None,
        problem: Problem | None = None,
    ) -> None:  # fmt: skip
        """Make a run's record final: judged by its outcome, or broken by a problem."""
        told = findings(outcome, self._settings) if outcome else {"problem": problem}
        identity = identity_of(run, self._settings.topology(run.recipe), self._settings, self._session)
        failed = tuple(self._schedule.launches.reasons.get(run.key, ()))
        record = RunRecord(**{**identity, **_traces_of(active), "failed_launches": failed, **told})
        self._keeper.keep(record)
        if record.problem is not None and record.problem.kind not in {"gated", "not_repeated"}:
            self._schedule.give_up_repeats(run, record.problem)

    def _look(self) -> tuple[RunView, ...]:
        note, launching = self._allocation_note, self._schedule.launching
        checks = [RunView(key="checks", state="checking", detail=self._checking)] if self._checking else []
        if self._unchecked and note:
            checks = [RunView(key="checks", state="waiting", detail=note)]
        return (
            *checks,
            *(view_of(active) for active in self._schedule.active),
            *([RunView(key=launching.key, state="waiting", detail="for Slurm to answer")] if launching else []),
            *(RunView(key=run.key, state="waiting", detail=note) for run in self._schedule.waiting),
        )


def _traces_of(active: Active | None) -> dict[str, Any]:
    """Traces of a launched run in Slurm and in time; empty for one that never was."""
    if active is None:
        return {}
    job = active.job
    timings = Timings(submitted=active.submitted, started=active.started, ended=time.time())
    return {"job_id": job.job_id, "hosts": job.hosts, "command": job.command, "timings": timings}
