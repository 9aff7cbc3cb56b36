"""The nodes that a session holds: it asks for them, checks them, shares them out, and gives them back."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.allocation import Allocation, ExistingJob, HeldJob, Waiting
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.lease import LeasePool
from pytest_llmbench.cluster.quarantine import refuse_quarantined, remove_bad
from pytest_llmbench.cluster.runs import Plan, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.slurm.commands import NotYetError, QueueFullError, ignored_options
from pytest_llmbench.cluster.this_host import ThisHost
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.nodes.gate import gate
from pytest_llmbench.session.nodes.losses import LostNodes
from pytest_llmbench.session.nodes.validation import Validator, health_record
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.session.schedule import Schedule
from pytest_llmbench.session.script.requests import holder_request

_AGAIN_S = 5.0


@dataclass(kw_only=True)
class HeldNodes:
    """The nodes of a session, if it holds any.

    Attributes:
        lost: the nodes that the session has lost.
        is_over: whether the session is ending.
        wait: waits for the given seconds; true if the session is ending.
        changed: called when `views` changes while nodes are checked.
        plan: the checks and runs that want them.
        note: the reason why the nodes are not there yet, for people; else empty.
        starts: Unix time at which Slurm expects to give them; None if unknown.
        ends_at: Unix time at which Slurm takes them back; infinite if no job holds them.
    """

    settings: Settings
    session: Session
    store: RecordStore
    heartbeat: Heartbeat
    schedule: Schedule
    lost: LostNodes
    is_over: Callable[[], bool]
    wait: Callable[[float], bool]
    changed: Callable[[], None]
    plan: Plan = field(default_factory=lambda: Plan(runs=()))
    note: str = ""
    starts: float | None = None
    ends_at: float = math.inf
    _allocation: Allocation = field(default_factory=Allocation)
    _checking: str = ""

    @property
    def unchecked(self) -> list[str]:
        """Checks that have no record yet."""
        checked = self.store.checks
        return [name for name in self.plan.checks if name not in checked]

    @property
    def views(self) -> tuple[RunView, ...]:
        """How the checks stand."""
        if self.unchecked and self.note:
            return (RunView(key="checks", state="waiting", detail=self.note, starts=self.starts),)
        return (RunView(key="checks", state="checking", detail=self._checking),) if self._checking else ()

    @property
    def job_id(self) -> str | None:
        """The id of the Slurm job that holds them, if one does."""
        return self._allocation.job_id

    def ask(self) -> None:
        """Ask for the nodes; return without waiting for them.

        Raises:
            ClusterError: the request can never be met.
        """
        self._allocation = self._choose()
        if self.settings.cluster == "slurm" and (ignored := ignored_options()):
            self._say(f"{', '.join(ignored)} of the environment: ignored; use the options of pytest")
        # Other nodes would have to be checked anew, when tests have been told already that these are fit.
        self.schedule.new_holds = (
            self.settings.retries if isinstance(self._allocation, HeldJob) and not self.plan.checks else 0
        )
        self._begin()

    def renew(self) -> None:
        """Give back the nodes that are left, and ask for as many as before, without those that were lost.

        Raises:
            ClusterError: the request can never be met.
        """
        self.release()
        self.schedule.new_holds -= 1
        self.schedule.is_short, self.schedule.pool = False, None
        self._allocation = self._choose()
        self._begin()

    def _begin(self) -> None:
        if isinstance(self._allocation, HeldJob):
            request = self._allocation.request
            self.store.note("submitting", name=layout.HOLDER, job=request.name, script=str(request.script))
        self._start()
        self.schedule.holder = self._allocation.job
        if isinstance(self._allocation, HeldJob):
            self.store.note("submitted", name=layout.HOLDER, job_id=self._allocation.job_id)
            self._say(f"Slurm job {self._allocation.job_id} asks for {self.settings.nodes} nodes")
        self._say(self._allocation.note)

    def ready(self) -> bool:
        """Whether runs may be launched; the first time that the nodes are there, they are checked.

        Raises:
            ClusterError: the nodes are lost, or will never be there.
        """
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):
            if not self.note and self.settings.cluster != "slurm":
                self._say(f"waiting: {hosts.reason}")
            self.note, self.starts = hosts.reason, hosts.starts
            return False
        self.note, self.starts = "", None
        if hosts is not None and self.schedule.pool is None:
            self.schedule.pool = self._take_over(hosts)
        return True

    def fail_unchecked(self, problem: Problem) -> None:
        """Give up every check that has no record yet."""
        for name in self.unchecked:
            report, job_id = Report(problem=f"{problem.kind}: {problem.message}"), self._allocation.job_id
            self.store.keep(health_record(get_check(name), self.settings, self.session, report=report, job_id=job_id))

    def release(self) -> None:
        """Give the nodes back, and end jobs of which Slurm never told us that it had taken them on."""
        try:
            self._allocation.release()
            if strays := self.schedule.slurm.cancel_strays():
                self._say(f"cancelled: job {', '.join(strays)}, which sbatch had not owned up to")
        except ClusterError as error:
            self._say(f"Slurm job {self._allocation.job_id} could not be cancelled: {error}; it ends itself soon")

    def _start(self) -> None:
        """Submit what holds the nodes; wait while a controller that was just started does not know its nodes."""
        while True:
            try:
                self._allocation.start()
            except QueueFullError as error:
                if why := self.schedule.full_queue.note_refused(layout.HOLDER, error, ours=0):
                    raise ClusterError(why) from error
                if self.wait(_AGAIN_S):
                    raise
            except NotYetError as error:
                self._say(f"waiting: {error}")
                if self.wait(_AGAIN_S):
                    raise
            else:
                return

    def _choose(self) -> Allocation:
        if self.settings.cluster != "slurm":
            return ThisHost()
        if existing_allocation() is not None:
            return ExistingJob(self.settings, self.schedule.slurm)
        if self.settings.allocation == "run":
            return Allocation()
        plan = self.plan.model_copy(update={"runs": tuple(run.spec for run in self.schedule.waiting)})
        request = holder_request(plan, self.settings, self.session)
        kept_off, longest = self.lost.kept_off(request), self.settings.max_wait_min
        return HeldJob(kept_off, self.heartbeat, self.schedule.slurm, longest)

    def _take_over(self, hosts: tuple[str, ...]) -> LeasePool:
        """Validate the nodes that are there now, and make leases of those that may train."""
        self.ends_at = self._allocation.ends_at()
        refuse_quarantined(hosts, self.settings)
        job = f"Slurm job {self._allocation.job_id} holds " if self._allocation.job_id else "measuring on "
        self._say(f"{job}{', '.join(hosts)}")
        fit = self._validate(hosts) if self.plan.checks else hosts
        pool = LeasePool(fit, out=[host for host in hosts if host not in fit])
        if self.settings.left_over:
            self.store.left_over = pool.beyond_groups(self.settings.nodes_per_run or 1)
        if self.store.left_over:
            left = ", ".join(self.store.left_over)
            self._say(f"NOT TESTED, too few for a group of {self.settings.nodes_per_run}: {left}")
        return pool

    def _validate(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Run every check; return the nodes that runs may have."""
        launcher, holder = self.schedule.launcher, self._allocation.job
        validator = Validator(
            settings=self.settings,
            session=self.session,
            gate=self.plan.gate,
            start=lambda probe, folder, on: launcher.start_probe(probe, folder, on, holder),
            look=self._look_while_checking,
            keep=self.store.keep,
            say=self._say_check,
        )
        validator.run(self.plan.checks, hosts, self.job_id)
        self._checking = ""
        self.store.unfit = validator.out
        self.store.notes.extend(remove_bad(validator.bad, self.settings, self.session))
        if not self.plan.gate:
            return hosts
        opened = gate(self.schedule.waiting, validator, hosts)
        for run, why in opened.stopped:
            self.schedule.waiting.remove(run)
            #: problem gated: too few nodes passed the checks; the run is a SKIP that names the check and the node
            self.schedule.fail(run, Problem(kind="gated", message=why))
        self._say(opened.note)
        return opened.fit

    def _look_while_checking(self) -> None:
        if self.is_over():
            raise ClusterError("the session ended before this check did")
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):  # it was suspended: what is measured across a pause is no speed of the hardware
            raise ClusterError(f"the nodes went away while they were checked: {hosts.reason}")

    def _say_check(self, text: str) -> None:
        self._checking = text
        self.changed()

    def _say(self, text: str) -> None:
        if text:
            self.store.notes.append(text)
