"""Follows a run to its end, by Slurm and by its log."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_llmbench.cluster.jobs import Job, JobOnSlurm, LocalJob, SlurmJob
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.background import BackgroundCall
from pytest_llmbench.cluster.slurm.full_queue import QueueLimit
from pytest_llmbench.cluster.slurm.queries import SHORT_WAIT_S, JobMarks
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobState, JobStatus, OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.notes import longest_pause
from pytest_llmbench.judging.sanity import Origin
from pytest_llmbench.session.early import Looking
from pytest_llmbench.session.ending import Outcome, began, cut_off, done
from pytest_llmbench.session.live.snapshot import LiveState, LiveTask, one_line
from pytest_llmbench.session.script.prepared import PreparedRun
from pytest_llmbench.session.watch import Watch

# A node that refuses to start a job is asked for after this.
_STARTS_WITHIN_S = 20.0
# Clocks of nodes are so far apart.
_STARTED_S = 1.0


@dataclass(kw_only=True)
class Active:
    """A run under way."""

    run: PreparedRun
    job: Job
    lease: Lease | None
    submitted: float  # Unix time at which its launch began
    clock: UnixClock = field(default_factory=UnixClock)
    started: float | None = None
    watch: Watch | None = None
    looking: Looking | None = None  # looks at it while it goes on, with `--llmbench-early-verdict`
    # Of its pending job: Slurm's reason, and the Unix time of its expected start
    pending_reason: str = ""
    starts: float | None = None
    cancelled: Problem | None = None  # the problem for which the session ended it
    marks: JobMarks = field(default_factory=JobMarks)  # past events of its job when it was launched
    nodelist: str = ""  # the nodes of its own job, in Slurm's notation
    suspended: bool = False
    adopted: bool = False  # an earlier process of its session launched it
    was_pending: bool = False  # Slurm has shown its job in the queue to this process
    avoided: tuple[str, ...] = ()  # nodes that its session had lost before, and that it was kept off

    @property
    def task(self) -> LiveTask:
        """Its state, for people who watch."""
        if self.watch is None:
            return live_task(self.run, "pending", f"{self.job.title} {self.pending_reason}".strip(), starts=self.starts)
        seen, recipe = self.watch.progress, self.run.spec.recipe
        if seen is None:
            return self._placed(live_task(self.run, "starting", self.job.title, started=self.started))
        task = self._placed(live_task(self.run, "running", step=seen.step, started=self.started))
        if not seen.seconds:
            return task
        rate, left = recipe.tokens_per_step / seen.seconds, (recipe.steps - seen.step) * seen.seconds
        return task.model_copy(update={"words_per_s": rate, "eta_s": left})

    def _placed(self, task: LiveTask) -> LiveTask:
        return task.model_copy(update={"hosts": listed(self.lease, 2) if self.lease else self.nodelist})


def live_task(
    run: PreparedRun, state: LiveState, detail: str = "", *, step: int = 0, starts: float | None = None,
    started: float | None = None,
) -> LiveTask:  # fmt: skip
    """The state of a run before its record is there."""
    return LiveTask(
        name=run.key, state=state, detail=one_line(detail), starts=starts, step=step, steps=run.spec.recipe.steps,
        started=started, gpus=run.topology.gpus, nodes=run.topology.nodes,
    )  # fmt: skip


# The end of a launch: the outcome of its run, or the reason why its launch failed.
Ended = Outcome | str


@dataclass
class Follower:
    """Follows the runs of one session, each to its end."""

    settings: Settings
    session: Session
    slurm: Slurm
    say: Callable[[str], None]

    @cached_property
    def _limit(self) -> QueueLimit:
        return QueueLimit(self.slurm, self.settings.max_wait_min)

    def look_after(self, active: Active) -> Ended | None:
        """Look at a run once: end it if necessary, and return its end; None while it goes on."""
        status = active.job.status()
        active.nodelist = status.nodelist
        if status.state is JobState.PENDING:
            active.pending_reason, active.starts, active.started = status.reason, status.starts, None
            active.was_pending = active.was_pending or status.word != ""
            if active.cancelled is None and (why := self._limit.why_never(active.job.job_id, status.reason)):
                message = f"Slurm job {active.job.job_id} will never start: {why}"
                self._cancel(active, Problem(kind="allocation", message=message))
            elif isinstance(active.job, SlurmJob) and active.watch is None:
                self._limit.enforce(active.job.ours)
            return None  #: problem allocation: the allocation is lost
        if status.state is JobState.SUSPENDED:
            active.suspended = True  # its processes stand still, and end only after it is resumed
            return None
        if active.watch is None:
            if isinstance(active.job, SlurmJob) and (reason := self._limit.reason_of_end(active.job.ours, status)):
                active.cancelled = Problem(kind="allocation", message=reason)
            # An adopted run has started some time after its submission.
            active.started = active.started or active.clock.now()
            active.watch = Watch(active.run.spec.recipe, active.run.place.folder, active.run.place.time_limit_min)
            if active.run.early is not None:
                active.looking = Looking(active.run, active.run.early, self.settings)
        if not status.alive:
            return self.finish(active, status)
        return self._follow(active, active.watch) if active.cancelled is None else None

    def finish(self, active: Active, status: JobStatus) -> Ended:
        """Gather the results of a run whose job has ended."""
        run, status = active.run, self._add_past_events(active, status)
        folder, recipe = run.place.folder, run.spec.recipe
        by_itself = status.state in {JobState.FAILED, JobState.COMPLETED} and active.cancelled is None
        if self.settings.cluster == "slurm" and by_itself and not began(folder):  # srun may exit with 0
            return _why_not_begun(active, status)
        driver, series = read_report(folder), run.engine.read(folder, recipe)
        ended = active.clock.now()
        wall_s = ended - active.submitted
        return Outcome(
            recipe=recipe, topology=run.topology, hosts=active.job.hosts, folder=folder, job=active.job, status=status,
            series=series, driver=driver, device=driver.device if driver else None, wall_s=wall_s,
            ended_by_us=active.cancelled,
            cut_off=cut_off(recipe, run.place.time_limit_min, status, active.cancelled),
            early=active.looking.result(series, wall_s) if active.looking is not None else None,
            restarted=() if done(series, driver, run.topology) else self._restarted(active),
            origin=Origin(token=self.session.run_token(run.key), launched=active.submitted, ended=ended),
        )  # fmt: skip

    def _restarted(self, active: Active) -> tuple[str, ...]:
        """The nodes of a run that were started again while it went on, as after a loss of power, by their slurmd."""
        job, since = active.job, active.started
        if not isinstance(job, JobOnSlurm) or since is None or active.adopted or self.slurm.silent or not job.hosts:
            return ()
        return self.slurm.queries.restarted(job.hosts, since + _STARTED_S)

    def is_done(self, active: Active) -> bool:
        """True if the logs prove that a run has done all its work."""
        folder = active.run.place.folder
        series = active.run.engine.read(folder, active.run.spec.recipe)
        return done(series, read_report(folder), active.run.topology)

    def end(self, active: Active) -> None:
        """End a run, and wait only a moment for Slurm to cancel its job."""

        def end() -> None:
            try:
                active.job.cancel()
            except ClusterError as error:
                self.say(f"run {active.run.key} could not be cancelled: {error}")

        if isinstance(active.job, SlurmJob):
            BackgroundCall(end, "scancel").is_over(SHORT_WAIT_S)
        else:
            end()

    def _follow(self, active: Active, watch: Watch) -> Ended | None:
        if active.suspended:
            self._cancel(active, Problem(kind="job_suspended", message="its job was suspended"))
            return None
        if watch.work_is_done(lambda: self.is_done(active)):
            # Epilogs may take minutes, and the controller be away: the logs count.
            if active.lease is not None or not self.slurm.silent:
                self.end(active)
            return self.finish(active, JobStatus(state=JobState.COMPLETED))
        if self._is_broken(active):
            self.end(active)  # before the ranks have met, the others would wait until the deadline of the start
            return self.finish(active, JobStatus(state=JobState.COMPLETED))
        if (problem := watch.look() or self._refused(active)) is None:
            self._look_for_enough(active, watch)
            return None
        if not self.is_done(active):
            if not (isinstance(active.job, JobOnSlurm) and self.slurm.misses(active.job.ours)):
                self._cancel(active, problem)
            return None  # the cause is that Slurm has lost the job
        self.end(active)  # we may look late: work that was done in time counts
        return self.finish(active, JobStatus(state=JobState.COMPLETED))

    def _is_broken(self, active: Active) -> bool:
        """True if a rank on this machine died; on Slurm, srun ends the others."""
        if not isinstance(active.job, LocalJob) or not (gone := active.job.gone):
            return False
        series = active.run.engine.read(active.run.place.folder, active.run.spec.recipe)
        return gone > sum(info.ended for info in series.ranks)

    def _refused(self, active: Active) -> Problem | None:
        """The problem of a job that Slurm shows as running and that a node refused to start."""
        job, since = active.job, active.started
        if not isinstance(job, SlurmJob) or since is None or active.clock.now() - since < _STARTS_WITHIN_S:
            return None
        if began(active.run.place.folder) or not (node := self.slurm.refusing(job.ours)):
            return None
        message = (
            f"{node} refused to start Slurm job {job.job_id}: it remembers another job of this id, which the "
            "controller has forgotten; Slurm has drained it, and `scontrol update nodename=... state=resume` brings it "
            "back"
        )
        return Problem(kind="job_lost", message=message)

    def _look_for_enough(self, active: Active, watch: Watch) -> None:
        """Let the ranks end as soon as every threshold is decided."""
        looking, at = active.looking, watch.progress
        if looking is None or at is None or not looking.look(at.step) or looking.asked is None:
            return
        watch.end_after(at.step)
        verdicts = "; ".join(looking.asked.decided)
        self.say(f"run {active.run.key}: decided by its first {looking.asked.look} steps, and ended early: {verdicts}")

    def _cancel(self, active: Active, problem: Problem) -> None:
        active.cancelled = problem
        self.end(active)

    def _add_past_events(self, active: Active, status: JobStatus) -> JobStatus:
        """Add events of the job during the run: a state may come and go between two looks."""
        if not isinstance(active.job, JobOnSlurm):
            return status
        job, before = active.job.ours, active.marks
        now = self.slurm.marks(job)
        if active.suspended or (now is not None and now.suspended != before.suspended):
            return replace(status, state=JobState.SUSPENDED, word="SUSPENDED", reason=now.suspended if now else "")
        if now is None and (reason := self._describe_pause(active, job)):
            return replace(status, state=JobState.SUSPENDED, word="SUSPENDED", reason=reason)
        if now is not None and now.preempted != before.preempted:
            return replace(status, state=JobState.PREEMPTED, word="PREEMPTED", reason=now.preempted)
        return status

    def _describe_pause(self, active: Active, job: OurJob) -> str:
        """Evidence that a job was suspended, if the controller is silent about it; else empty."""
        # sacct's sum includes suspensions from before this run began, and is useless after one.
        seconds = None if active.marks.suspended else self.slurm.suspended_s(job)
        if seconds:
            return f"for {seconds:.0f} s, by sacct"
        recipe, folder = active.run.spec.recipe, active.run.place.folder
        ranks = active.run.engine.read(folder, recipe).ranks
        first_step = min((info.steps.began for info in ranks if info.steps is not None), default=0.0)
        if pause := longest_pause(folder, first_step):
            return f"Slurm does not report it, but {pause[0]} paused for {pause[1]:.0f} s"
        if seconds is None and active.watch is not None:
            self.say(
                f"run {active.run.key}: Slurm does not report whether its job {job.id} was suspended; none of its "
                "processes measured a pause"
            )
        return ""


def _why_not_begun(active: Active, status: JobStatus) -> str:
    words = active.job.last_words().splitlines()[-1:]
    launcher = "srun" if active.lease is not None else "its Slurm job"
    silent = "" if words else " or a word (is something else than Slurm's srun on PATH?)"
    fine = f"{launcher} ended without an error{silent}"
    how = fine if status.state is JobState.COMPLETED else status.reason or status.word
    return ": ".join((f"{how}, and no rank had started", *words))
