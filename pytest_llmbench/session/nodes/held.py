"""The nodes that a session holds: it asks for them, checks them, shares them out, and gives them back."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_llmbench.checks.base import get_check
from pytest_llmbench.cluster.allocation import Allocation, ExistingJob, HeldJob, ThisHost, Waiting
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.lease import LeasePool
from pytest_llmbench.cluster.quarantine import refuse_quarantined, remove_bad
from pytest_llmbench.cluster.runs import Plan, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation
from pytest_llmbench.cluster.slurm.commands import NotYetError, QueueFullError, ignored_options
from pytest_llmbench.cluster.slurm.topology import find_places
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.launch import LostNodes
from pytest_llmbench.session.nodes.validation import Validator, health_record
from pytest_llmbench.session.record_store import RecordStore
from pytest_llmbench.session.schedule import Schedule
from pytest_llmbench.session.script.prepared import holder_request

_AGAIN_S = 5.0


@dataclass(kw_only=True)
class HeldNodes:
    """The nodes of a session, if it holds any."""

    settings: Settings
    session: Session
    store: RecordStore
    heartbeat: Heartbeat
    schedule: Schedule
    lost: LostNodes
    stopping: threading.Event  # set when the session is ending
    changed: Callable[[], None]  # called when checks begin
    plan: Plan = field(default_factory=lambda: Plan(runs=()))
    note: str = ""  # the reason for waiting for nodes, for people; else empty
    starts: float | None = None  # Unix time at which Slurm expects to give them; None if unknown
    ends_at: float = math.inf  # Unix time at which Slurm takes them back; infinite for nodes outside a job
    _allocation: Allocation = field(default_factory=Allocation)

    @property
    def unchecked(self) -> list[str]:
        """Checks whose records are missing."""
        checked = self.store.checks
        return [name for name in self.plan.checks if name not in checked]

    @property
    def job_id(self) -> str | None:
        """The id of the Slurm job that holds them, if one does."""
        return self._allocation.job_id

    def ask(self) -> None:
        """Ask for the nodes, and return at once. Raises ClusterError: the request is impossible."""
        if self.settings.cluster == "slurm" and (ignored := ignored_options()):
            self._say(f"ignored environment variables: {', '.join(ignored)}; use the options of pytest")
        self._begin()
        # With checks, tests may have passed already because these nodes are fit: others would need checks of their own.
        if isinstance(self._allocation, HeldJob) and not self.plan.checks:
            self.schedule.new_holds = self.settings.retries

    def renew(self) -> None:
        """Ask for as many nodes as before, and exclude the lost ones (raises ClusterError)."""
        self.release()
        self.schedule.new_holds -= 1
        self.schedule.is_short, self.schedule.pool = False, None
        self._begin()

    def _begin(self) -> None:
        self._allocation = self._choose()
        if isinstance(self._allocation, HeldJob):
            request = self._allocation.request
            self.store.note("submitting", name=layout.HOLDER, job=request.name, script=str(request.script))
        self._start()
        self.schedule.holder = self._allocation.job
        if isinstance(self._allocation, HeldJob):
            self.store.note("submitted", name=layout.HOLDER, job_id=self.job_id)
            self._say(f"Slurm job {self.job_id} asks for {counted(self._allocation.request.nodes, 'node')}")
        self._say(self._allocation.note)

    def ready(self) -> bool:
        """True if runs may be launched. The first time that the nodes are there, they are checked.

        Raises ClusterError if the nodes are lost, or will never come.
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
        """Give up every check whose record is missing."""
        for name in self.unchecked:
            report, check = Report(problem=f"{problem.kind}: {problem.message}"), get_check(name)
            self.store.keep(health_record(check, self.settings, self.session, report=report, job_id=self.job_id))

    def release(self) -> None:
        """Give the nodes back, and end jobs whose sbatch failed to answer."""
        try:
            self._allocation.release()
            if strays := self.schedule.slurm.cancel_strays():
                self._say(f"cancelled job {', '.join(strays)}, which sbatch had not reported")
        except ClusterError as error:
            self._say(f"Slurm job {self.job_id} could not be cancelled: {error}; it ends itself soon")

    def _start(self) -> None:
        """Submit what holds the nodes; wait while the nodes of a new controller register."""
        while True:
            try:
                self._allocation.start()
            except NotYetError as error:
                if not isinstance(error, QueueFullError):
                    self._say(f"waiting: {error}")
                elif reason := self.schedule.full_queue.note_refused(layout.HOLDER, error, ours=0):
                    raise ClusterError(reason) from error
                if self.stopping.wait(_AGAIN_S):
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
        kept_off, longest = self.lost.exclude_lost(request), self.settings.max_wait_min
        return HeldJob(kept_off, self.heartbeat, self.schedule.slurm, longest)

    def _take_over(self, hosts: tuple[str, ...]) -> LeasePool:
        self.ends_at = self._allocation.ends_at()
        refuse_quarantined(hosts, self.settings)
        self._say(f"{f'Slurm job {self.job_id} holds' if self.job_id else 'measuring on'} {listed(hosts)}")
        fit = self._validate(hosts) if self.plan.checks else hosts
        pool = LeasePool(fit, out=[host for host in hosts if host not in fit])
        if self.settings.left_over:
            self.store.left_over = pool.beyond_groups(self.settings.nodes_per_run or 1)
        if self.store.left_over:
            left = listed(self.store.left_over)
            self._say(f"NOT TESTED, too few for a group of {self.settings.nodes_per_run}: {left}")
        return pool

    def _validate(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        launcher, holder = self.schedule.launcher, self._allocation.job
        validator = Validator(
            settings=self.settings, session=self.session, gate=self.plan.gate, keep=self.store.keep,
            start=lambda probe, folder, on: launcher.start_probe(probe, folder, on, holder),
            look=self._look_while_checking, places=self._find_places(),
        )  # fmt: skip
        self.store.checking = True
        self.changed()
        validator.run(self.plan.checks, hosts, self.job_id)
        self.store.checking = False
        self.store.unfit = validator.out
        self.store.notes.extend(remove_bad(validator.bad, self.settings, self.session))
        return self._gate(validator, hosts) if self.plan.gate else hosts

    def _find_places(self) -> Places:
        """Racks and switches; none, with a note, where they cannot be read."""
        ask, topology = self.schedule.slurm.queries.answer, self.settings.system.topology
        if topology is None and self.settings.cluster != "slurm":
            return Places()
        try:
            return find_places(topology, lambda: ask(["scontrol", "show", "topology"])[0])
        except ConfigError as error:
            self._say(f"racks and switches are unknown: {error}")
            return Places()

    def _gate(self, validator: Validator, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes that may train; give up the runs for which they are too few."""
        unfit = listed((f"{host} failed {check}" for host, check in validator.out.items()), between="; ")
        fit, everything = tuple(host for host in hosts if host not in validator.out), validator.why_gated(hosts)
        for run in list(self.schedule.waiting):
            needed = run.topology.nodes * (run.spec.group or 1)  # groups get the fit nodes in order
            if everything is None and needed <= len(fit):
                continue
            too_few = f"gated: {unfit}; {len(fit)} fit nodes are too few for {needed}"
            message = too_few if everything is None else f"gated: {everything}"
            self.schedule.waiting.remove(run)
            #: problem gated: too few nodes passed the checks; the run is a SKIP that names the check and the node
            self.schedule.fail(run, Problem(kind="gated", message=message))
        if unfit and self.schedule.waiting:
            self._say(f"runs go to the {len(fit)} fit nodes ({listed(fit)}): {unfit}")
        return fit

    def _look_while_checking(self) -> None:
        if self.stopping.is_set():
            raise ClusterError("the session ended before this check did")
        hosts = self._allocation.hosts()
        if isinstance(hosts, Waiting):  # it was suspended: a measurement across a pause is too slow
            raise ClusterError(f"the nodes went away while they were checked: {hosts.reason}")

    def _say(self, text: str) -> None:
        if text:
            self.store.notes.append(text)
