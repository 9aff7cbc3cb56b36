"""Validating the nodes of a session: every check in its order, before any training, and who is fit afterwards."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_llmbench.checks.base import Answer, Check, CheckSettings, Site, get_check
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import Timings, Verdict
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.session.nodes.fleet import HeldFleet, Start

# What is not measured beside a node that failed another check: the links between many nodes.
_GATED = ("collectives", "network")


@dataclass(kw_only=True)
class Validator:
    """Runs the checks of a session.

    Attributes:
        gate: links are left unmeasured on nodes that failed another check, unless `--llmbench-gate links`.
        start: starts a probe on nodes, in a folder.
        look: called while waiting; it raises ClusterError when the nodes are gone or the session ends.
        keep: takes each record as soon as it is final.
        say: called with the check that runs now.
        out: nodes that are not fit, and why.
        bad: those of them with findings; the others are unknown.
        all_out: reason why no node is known to be fit: there is a fault, and its node is unknown.
    """

    settings: Settings
    session: Session
    gate: bool
    start: Start
    look: Callable[[], None]
    keep: Callable[[HealthRecord], None]
    say: Callable[[str], None]
    out: dict[str, str] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    all_out: str | None = None
    _remembered: dict[str, list[Answer]] = field(default_factory=dict)
    _unreachable: dict[str, str] = field(default_factory=dict)

    def run(self, names: Sequence[str], hosts: Sequence[str], job_id: str | None) -> None:
        """Run checks on nodes, one after the other: two at once would measure each other.

        Raises:
            ClusterError: the nodes are gone; the checks that are left have records that say so.
        """
        site = site_of(self.settings, names)
        for number, name in enumerate(names, 1):
            self.say(f"{name}, {number} of {len(names)}")
            try:
                self.keep(self._one(get_check(name), site, hosts, job_id))
            except ClusterError as error:
                for left in names[number - 1 :]:
                    self.keep(self._record(get_check(left), hosts, job_id, Report(problem=str(error))))
                raise

    def _one(self, check: Check, site: Site, hosts: Sequence[str], job_id: str | None) -> HealthRecord:
        settings = self.settings.system.validation.get(check.name, CheckSettings())
        gated = self._gated(check)
        clock = UnixClock()
        began = clock.now()
        fleet = HeldFleet(
            site,
            tuple(host for host in hosts if host not in gated and host not in self._unreachable),
            self.session.check_folder(check.name),
            start=self.start,
            look=self.look,
            remembered=self._remembered,
            unreachable=self._unreachable,
        )
        report = self._report(check, fleet, settings, gated)
        record = self._record(check, hosts, job_id, report).model_copy(
            update={"options": settings.options, "timings": Timings(started=began, ended=clock.now())}
        )
        self._learn(record)
        return record

    def _report(self, check: Check, fleet: HeldFleet, settings: CheckSettings, gated: dict[str, str]) -> Report:
        if settings.skip is not None:
            return Report(skip=f"system {self.settings.system.name} leaves it out: {settings.skip}")
        gone = {host: why for host, why in self._unreachable.items() if host not in gated}
        who = "; ".join(f"{host} failed {why}" for host, why in gated.items())
        if gated and (check.scope == "cluster" or not fleet.hosts):
            return Report(skip=f"gated: {who}. --llmbench-gate links runs it all the same")
        if gone and (check.scope == "cluster" or not fleet.hosts):
            return Report(problem="; ".join(f"{host} cannot be reached: {why}" for host, why in gone.items()))
        make_folder(fleet.folder)
        try:
            report = check.run(fleet, settings)
        except ClusterError:
            raise
        except ConfigError as error:
            return Report(problem=str(error))
        except Exception:  # noqa: BLE001 - a check that breaks is an ERROR of its own, and ends no other
            return Report(problem=f"the check broke:\n{traceback.format_exc()}")
        skipped = {**report.skipped, **{host: f"gated: it failed {why}" for host, why in gated.items()}}
        return report.model_copy(update={"skipped": skipped, "unjudged": {**gone, **report.unjudged}})

    def _gated(self, check: Check) -> dict[str, str]:
        return dict(self.out) if self.gate and not self.settings.nccl and check.family in _GATED else {}

    def _learn(self, record: HealthRecord) -> None:
        for host, why in record.unfit().items():
            self.out.setdefault(host, why)
        for host, why in record.bad().items():
            self.bad.setdefault(host, why)
        if len(self._unreachable) < len(record.hosts):  # else it is not the nodes
            for host, why in self._unreachable.items():
                self.bad.setdefault(host, f"{record.check}: {why}")
        verdict, reason = record.state(None)
        if record.scope == "cluster" and verdict in {Verdict.FAIL, Verdict.ERROR} and not record.unfit():
            self.all_out = self.all_out or f"{record.check}: {reason.splitlines()[0]}"
        elif verdict is Verdict.ERROR and record.report.problem is not None:
            self.all_out = self.all_out or f"{record.check}: {record.report.problem.splitlines()[0]}"

    def why_gated(self, hosts: Sequence[str]) -> str | None:
        """The reason why nothing may train on any of these nodes; None where the fit ones are known.

        A fault of all nodes together is settled if a later check has named its node.
        """
        if all(host in self.out for host in hosts):
            return "; ".join(f"{host} failed {self.out[host]}" for host in hosts)
        return None if self.out else self.all_out

    def _record(self, check: Check, hosts: Sequence[str], job_id: str | None, report: Report) -> HealthRecord:
        return health_record(check, self.settings, self.session, hosts=hosts, job_id=job_id, report=report)


def health_record(
    check: Check, settings: Settings, session: Session, *, report: Report, hosts: Sequence[str] = (),
    job_id: str | None = None,
) -> HealthRecord:  # fmt: skip
    """Put a check's report on record."""
    return HealthRecord(
        session=session.id, token=session.token, check=check.name, family=check.family, scope=check.scope,
        system=settings.system.name, cluster=settings.cluster, job_id=job_id, hosts=tuple(hosts),
        gpus_per_node=settings.gpus_of_a_node or 0, folder=str(session.check_folder(check.name)), report=report,
    )  # fmt: skip


def site_of(settings: Settings, names: Sequence[str]) -> Site:
    """The part of the cluster that checks may see."""
    system, gpu = settings.system, settings.system.gpu
    return Site(
        system=system.name, nodes=settings.nodes or 1, gpus_per_node=settings.gpus_of_a_node or 0,
        cpu_ranks_per_node=system.cpu_ranks_per_node, gpu_model=gpu.model if gpu else None,
        gpu_memory_gib=gpu.memory_gib if gpu else None, peak_tflops={**gpu.peak_tflops} if gpu else {},
        env=system.env, environments=system.environments, scale=settings.scale, slurm=settings.cluster == "slurm",
        selected=tuple(names),
    )  # fmt: skip
