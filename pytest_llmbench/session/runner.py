"""The runner: one thread that allocates, launches, watches and concludes every run of a session."""

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

from pytest_llmbench.cluster import executors
from pytest_llmbench.cluster.allocation import JobEndedError
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import SlurmJob, await_an_end, end_all
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus
from pytest_llmbench.cluster.slurm.watchman import Watchman
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder, refuse_shared
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.records import (
    JobTraces,
    Problem,
    RunAttempts,
    RunOutcome,
    RunRecord,
    RunTraces,
    Timings,
)
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.ending import JOB_ENDS, Outcome, conclude, lost_nodes, run_identity, sweep
from pytest_llmbench.session.following import Active, Ended, Follower, live_task
from pytest_llmbench.session.journal.earlier import Earlier, adopt, put_aside
from pytest_llmbench.session.launch import Launcher, LostNodes
from pytest_llmbench.session.nodes.held import HeldNodes
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.session.schedule import RETRIED, Repeats, Retries, Schedule, harness_problem, no_time_for
from pytest_llmbench.session.script.prepared import prepare

_TICK_S = 0.2
_SOON_S = 0.02
_FEW_STEPS = 16
# Of runs that wait in Slurm's queue: so many are looked at in each tick, and of the others one in so many.
_MOST_NEXT, _PARTS = 64, 10
# People look at the state of the runs as often.
_SHOW_S = 1.0
#: problem session_ended: pytest ended, or was killed, before the run did
_ENDED = "the session ended before this run did"


class Runner:
    """Runs every run of a session, as many at a time as nodes and `llmbench_max_runs` allow, and stores the results."""

    _shown, _looks = 0.0, 0

    def __init__(
        self, settings: Settings, session: Session, store: RecordStore, earlier: Earlier | None = None
    ) -> None:
        self._settings = settings
        self._session = session
        self._store = store
        self._earlier = earlier
        self._say = store.notes.append
        self._stopping = threading.Event()
        # On this machine the processes have to end, on Slurm its commands to answer.
        self._stop_wait_s = 10.0 if settings.cluster == "slurm" else 60.0
        self._reason = ""
        self._slurm = Slurm(store.notes)
        self._heartbeat = Heartbeat(session.folder, settings.heartbeat_timeout)
        self._follower = Follower(settings, session, self._slurm, self._say)
        self._lost = LostNodes(settings, session, self._say)
        self._schedule = Schedule(
            settings=settings, slurm=self._slurm, begun=self._note_begun, say=self._say,
            launcher=Launcher(settings, session, self._heartbeat, self._slurm, store.note, self._lost),
            fail=lambda run, problem: self._fail(run.spec, problem),
        )  # fmt: skip
        self._nodes = HeldNodes(
            settings=settings, session=session, store=store, heartbeat=self._heartbeat, schedule=self._schedule,
            lost=self._lost, stopping=self._stopping, changed=self._show,
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._watchman: Watchman | None = None
        self._may_repeat = settings.rerun and settings.cluster != "debug"
        self._repeats = Repeats()
        self._retries = Retries(settings.retries, session, store.keep_attempt)

    def start(self, plan: Plan) -> None:
        """Take on checks and runs. In the debug cluster they happen here and now, in this thread."""
        executors.load()
        make_folder(self._session.folder)
        if self._settings.cluster != "debug":
            refuse_shared(self._session.folder)
        self._heartbeat.start()
        if self._settings.cluster == "slurm":
            self._watchman = Watchman(self._session.folder, self._session.token)
        self._nodes.plan = plan
        self._may_repeat = self._may_repeat and bool(plan.runs)
        for run in plan.runs:
            self._take_on(run)
        for run in plan.runs:
            self._give_up_repeats_of(run)
        if self._earlier is not None and (left_out := self._earlier.not_selected(plan)):
            self._say(f"{counted(left_out, 'test')} of this session are not selected now, and so not judged")
        if self._settings.cluster == "debug":
            self._work()
            return
        self._thread = threading.Thread(target=self._work, name="llmbench-runner", daemon=True)
        self._thread.start()

    def repeat(self, runs: Sequence[RunSpec]) -> None:
        """Take on further runs, which get a record whatever happens. In the debug cluster they happen here and now."""
        for run in self._repeats.ask(runs):
            self._fail(run, self._session_ended())
        if self._settings.cluster == "debug":
            self._work()

    def expect_no_repeats(self) -> None:
        """Give the nodes back as soon as all runs are over."""
        self._may_repeat = False

    def begin_no_more(self, reason: str = "") -> None:
        """Stop launching, and return at once: `stop` follows. The first reason is in the records of runs it ends."""
        self._reason = self._reason or reason
        self._stopping.set()
        # A little less than `stop` waits, so that there is an end in order after a command that was cut off.
        self._slurm.queries.end_within(0.8 * self._stop_wait_s)

    def stop(self, say: Callable[[str], None] | None = None) -> None:
        """End every run under way, give the nodes back, fall silent. Safe to call twice.

        If that takes longer than a moment, `say` shows the reason.
        """
        self.begin_no_more()
        deadline = time.monotonic() + self._stop_wait_s
        thread, self._thread = self._thread, None
        while thread is not None and thread.is_alive() and time.monotonic() < deadline:
            thread.join(_TICK_S)
            while self._store.notes and say is not None:
                say(self._store.notes.popleft())
        if thread is not None and thread.is_alive():
            self._say(
                "the runs did not end in time; their jobs end themselves within a minute: see squeue for the comment "
                f"{self._session.token}"
            )
        elif thread is not None:
            sweep(self._session.folder, [key for key, run in self._store.runs.summaries.items() if run.is_sane])
        self._slurm.look_no_more()
        self._heartbeat.stop()
        if self._watchman is not None:
            self._watchman.dismiss()

    def _work(self) -> None:
        try:
            self._adopt()
            if self._busy:
                self._nodes.ask()
            while (self._busy or self._may_repeat) and not self._stopping.is_set():
                self._tick_or_hold_again()
                self._rest()
            self._give_up(self._session_ended())
        except ClusterError as error:
            ended = error.status if isinstance(error, JobEndedError) else None
            self._give_up(Problem(kind="allocation", message=str(error)), ended)
        except Exception:  # noqa: BLE001 - the thread's border: whatever it is, every test must hear of it
            self._give_up(harness_problem())
        finally:
            # In the debug cluster, it is called again for more.
            if self._settings.cluster != "debug":
                for run in self._repeats.end():
                    self._fail(run, self._session_ended())
            self._nodes.release()

    def _session_ended(self) -> Problem:
        return Problem(kind="session_ended", message=f"{_ENDED}: {self._reason}" if self._reason else _ENDED)

    def _rest(self) -> None:
        """Wait until a process of ours ends, for a while at most, and briefly if an answer is due."""
        active = self._schedule.active
        if self._schedule.launching:
            self._stopping.wait(_SOON_S)
        elif not await_an_end([run.job for run in active], _TICK_S):
            # Without pidfds, steps are looked at often: their ends cost a look, and a look at their jobs asks Slurm.
            few_steps = self._schedule.holder is not None and 0 < len(active) <= _FEW_STEPS
            self._stopping.wait(_SOON_S if few_steps else _TICK_S)

    def _adopt(self) -> None:
        if self._earlier is None:
            return
        for active in adopt(
            self._earlier, self._settings, self._slurm, list(self._schedule.waiting), self._store.runs,
            wait=self._stopping.wait, say=self._say,
        ):  # fmt: skip
            self._schedule.waiting.remove(active.run)
            self._schedule.active.append(active)
            self._note_begun(active)
            self._store.note("submitted", name=active.run.key, job_id=active.job.job_id)
            if self._follower.is_done(active):
                self._take_end(active, self._follower.finish(active, JobStatus(state=JobState.COMPLETED)))

    def _take_on(self, run: RunSpec) -> None:
        earlier = self._earlier.finished(run, self._settings) if self._earlier is not None else ""
        if isinstance(earlier, RunRecord):
            self._say(f"run {run.key}: finished before, and kept")
            self._store.keep(earlier)
            return
        if earlier:
            self._say(f"run {run.key} is made again: {earlier}")
        prepared = prepare(run, self._settings, self._session)
        if isinstance(prepared, Problem):
            self._fail(run, prepared)
        else:
            self._schedule.waiting.append(prepared)

    def _take_on_repeats(self) -> None:
        """Take on the further runs that were asked for, if the job that holds the nodes lasts long enough."""
        for runs in self._repeats.take():
            problem = no_time_for(runs, self._store.runs.summaries, self._nodes.ends_at)
            for run in runs:
                if problem is not None:
                    self._fail(run, problem)
                    continue
                self._take_on(run)
                if self._earlier is not None and run.key not in self._store.runs:
                    put_aside(self._session, self._session.run_folder(run.key))

    @property
    def _busy(self) -> bool:
        return self._schedule.busy or bool(self._nodes.unchecked) or self._repeats.waiting

    def _tick_or_hold_again(self) -> None:
        """Look at everything; where Slurm took the nodes away, ask for new ones, as `--llmbench-retries` allows."""
        try:
            self._tick()
        except JobEndedError as error:
            if JOB_ENDS.get(error.status.state) not in RETRIED or not self._schedule.new_holds:
                raise
            self._say(f"{error}; new nodes are asked for")
            self._schedule.take_launched(None)
            for active in self._end_all():
                self._take_end(active, self._follower.finish(active, error.status))
            self._lost.take(layout.HOLDER, error.status.failed)
            self._schedule.is_short = True
        if self._schedule.needs_new_nodes:
            self._nodes.renew()

    def _tick(self) -> None:
        self._take_on_repeats()
        self._schedule.take_launched(0.0)
        if ready := self._nodes.ready():
            self._schedule.launch_what_fits()
        under_way = list(self._schedule.active)
        for active in self._to_look_at(under_way):
            try:
                if (ended := self._follower.look_after(active)) is not None:
                    self._take_end(active, ended)
            except Exception:  # noqa: BLE001 - a run's border: what breaks over one must not end the others
                problem = harness_problem()
                self._follower.end(active)
                self._schedule.forget(active)
                self._fail(active.run.spec, problem, active)
        if ready and len(self._schedule.active) < len(under_way):
            self._schedule.launch_what_fits()  # now: until our next look, the nodes would idle
        if time.monotonic() - self._shown >= _SHOW_S:  # thousands of runs take a while
            self._show()

    def _to_look_at(self, under_way: Sequence[Active]) -> Iterator[Active]:
        """Yield the runs to look at now: of very many that wait for Slurm, those that come next and some of the others.

        Jobs start in another order as well, and this is noticed a few looks later.
        """
        self._looks += 1
        waiting = 0
        for active in under_way:
            if active.watch is None and isinstance(active.job, SlurmJob):
                waiting += 1
                if waiting > _MOST_NEXT and (zlib.crc32(active.run.key.encode()) + self._looks) % _PARTS:
                    continue
            yield active

    def _note_begun(self, active: Active) -> None:
        """Write what it takes to find a run again from another process."""
        job = active.job
        self._store.notes.extend([job.note] if job.note else [])
        active.avoided = self._lost.names
        traces = JobTraces(
            session=self._session.id, key=active.run.key, token=self._session.token, cluster=self._settings.cluster,
            allocation=self._nodes.job_id, job_id=job.job_id, hosts=job.hosts,
            command=job.command, submitted=active.submitted,
        )  # fmt: skip
        self._store.write(active.run.place.folder / layout.JOB, traces)

    def _take_end(self, active: Active, ended: Ended) -> None:
        """Make the record of a run that has ended, or have the run launched or made again."""
        self._schedule.forget(active, worked=not isinstance(ended, str))
        if isinstance(ended, str):
            self._schedule.launch_again(active.run, ended)
            return
        run, result = active.run.spec, conclude(ended, self._settings)
        problem = result.problem
        if active.adopted and problem and self._earlier is not None and self._earlier.explains(problem, active):
            self._say(f"run {run.key} is made again: it may have ended with its session ({problem.kind})")
            put_aside(self._session, self._session.run_folder(run.key))
            self._schedule.waiting.insert(0, active.run)
            return
        if lost := lost_nodes(ended, problem):
            self._lost.take(run.key, lost)
            if self._schedule.pool is not None:
                self._schedule.pool.lose(lost)
        record = self._record(run, result, active, ended)
        if record.problem is not None and self._retries.wants(run.key, record.problem):
            self._say(self._retries.supersede(record, record.problem))
            self._schedule.waiting.insert(0, active.run)
            return
        self._keep(run, record)

    def _give_up(self, problem: Problem, ended: JobStatus | None = None) -> None:
        """End what runs, and give every run that is left a record of the problem.

        The reason may be that the job `ended` that held the nodes of what runs.
        """
        self._schedule.take_launched(None)  # each command has an end, and a soon one where somebody waits for ours
        for active in self._end_all():
            done = ended is not None and (ended.state in JOB_ENDS or self._follower.is_done(active))
            if ended is not None and active.watch is not None and done:
                self._take_end(active, self._follower.finish(active, ended))
            else:
                self._schedule.forget(active)
                self._fail(active.run.spec, problem, active)
        self._schedule.fail_waiting(problem)
        self._nodes.fail_unchecked(problem)
        self._store.tasks = {}

    def _end_all(self) -> list[Active]:
        """End the runs under way side by side, and return them: jobs by one command, steps and processes by signals."""
        runs = list(self._schedule.active)
        try:
            end_all([active.job for active in runs], self._slurm)
        except ClusterError as error:
            self._say(f"runs could not be cancelled: {error}; they end themselves within a minute")
        return runs

    def _fail(self, run: RunSpec, problem: Problem, active: Active | None = None) -> None:
        """Make the record of a run that a problem ended, or kept from being launched."""
        self._keep(run, self._record(run, RunOutcome(problem=problem), active))

    def _keep(self, run: RunSpec, record: RunRecord) -> None:
        self._store.keep(record)
        self._give_up_repeats_of(run)

    def _record(
        self, run: RunSpec, result: RunOutcome, active: Active | None, outcome: Outcome | None = None
    ) -> RunRecord:
        key, hosts, traces = run.key, active.job.hosts if active else (), RunTraces()
        attempts = RunAttempts(
            failed_launches=tuple(self._schedule.failed_launches.reasons.get(key, ())),
            superseded=self._retries.superseded[key],
            lost_nodes=self._lost.of_run[key],
            avoided_nodes=tuple(node for node in active.avoided if node not in hosts) if active else (),
        )
        if active is not None:
            driver, now = outcome.driver if outcome else None, active.clock.now()
            ended = outcome.origin.ended or now if outcome else now
            traces = RunTraces(
                job_id=active.job.job_id,
                hosts=driver.hosts if driver else hosts,
                command=active.job.command,
                timings=Timings(submitted=active.submitted, started=active.started, ended=ended),
            )
        return RunRecord.of(run_identity(run, self._settings, self._session), attempts, traces, result)

    def _give_up_repeats_of(self, run: RunSpec) -> None:
        """Give up the runs that were to be judged together with a broken one."""
        summary = self._store.runs.summaries.get(run.key)
        problem = summary.problem if summary is not None else None
        if problem is not None and problem.kind not in {"gated", "not_repeated"}:
            self._schedule.give_up_repeats(run, problem)

    def _show(self) -> None:
        """Publish the state of every run for the live view."""
        self._shown, schedule = time.monotonic(), self._schedule
        note, starts = self._nodes.note or schedule.failed_launches.note, self._nodes.starts
        tasks = [active.task for active in schedule.active]
        tasks += [live_task(run, "waiting", "for Slurm to answer") for run in schedule.launching]
        tasks += [live_task(run, "waiting", note, starts=starts) for run in schedule.waiting]
        self._store.tasks = {task.name: task for task in tasks}
