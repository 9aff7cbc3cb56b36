"""Runs the checks of a session, one after the other, before any training."""

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import Answer, Check, CheckSettings, Probe, Site, get_check
from pytest_llmbench.cluster.jobs import Job
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import NOT_MEASURED, ClusterError, ConfigError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import Timings, Verdict
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.foreign import mapped

_LOOK_S = 0.05
# Files of ranks that have ended may reach this machine a moment later.
_LAG_S = 3.0
_MOST_AT_ONCE = 64

# Starts a probe on nodes, in a folder.
Start = Callable[[Probe, Path, Sequence[str]], Job]
# Families that measure links between nodes: left out for nodes that failed another check.
_GATED = ("collectives", "network")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A probe under way, or the reason why its start was refused."""

    probe: Probe
    hosts: tuple[str, ...]
    folder: Path
    job: Job | None
    refused: str


@dataclass
class HeldFleet:
    """Runs the probes of a check on the held nodes (see `checks.base.Fleet`)."""

    site: Site
    hosts: tuple[str, ...]  # the nodes, in Slurm's own order, which is that of the ranks
    folder: Path
    _: KW_ONLY
    start: Start
    look: Callable[[], None]  # called while waiting; it raises ClusterError when the nodes are gone or the session ends
    # Answers of the session's shared probes so far, by node, and the seconds that each probe took
    remembered: dict[str, tuple[float, list[tuple[str, Answer]]]]
    unreachable: dict[str, str]  # nodes that refuse every start, and why; this fleet adds to it
    commands: list[str] = field(default_factory=list)  # the started processes, in order
    shared_s: float = 0.0  # seconds of shared probes that an earlier check ran for this one
    _count: int = 0

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Run probes, all at once, and wait for them."""
        steps = [self._begin(probe) for probe in probes]
        late = self._wait(steps)
        answers = [_answers(step, late=step in late) for step in steps]
        return [self._again(*pair) for pair in zip(steps, answers, strict=True)]

    def once(self, probe: Probe) -> list[Answer]:
        """Run a probe that several checks share the first time it is asked for, and remember what it gave.

        Later, some of the nodes may be left out.
        """
        key = json.dumps([probe.name, probe.entry, probe.config], sort_keys=True)
        hosts = [host for host in self.hosts if probe.hosts is None or host in probe.hosts]
        took_s, answers = self.remembered.get(key, (0.0, []))
        if {*hosts} <= {host for host, _ in answers}:
            self.shared_s += took_s
        else:
            began, per_node = time.monotonic(), probe.ranks_per_node
            answers = [(hosts[answer.rank // per_node], answer) for answer in self.run([probe])[0]]
            self.remembered[key] = (time.monotonic() - began, answers)
        return [answer for host, answer in answers if host in hosts]

    def _begin(self, probe: Probe) -> _Step:
        self._count += 1
        folder = self.folder / layout.STEPS / f"{self._count:03d}-{probe.name}"
        hosts = tuple(host for host in self.hosts if probe.hosts is None or host in probe.hosts)
        make_folder(folder)
        job, refused = None, ""
        try:
            job = self.start(probe, folder, hosts)
            self.commands.append(job.command)
        except ClusterError as error:
            refused = str(error)
        return _Step(probe=probe, hosts=hosts, folder=folder, job=job, refused=refused)

    def _wait(self, steps: Sequence[_Step]) -> list[_Step]:
        """Wait for all steps; end those that are busy at their deadline, and return them."""
        began = time.monotonic()
        late: list[_Step] = []
        try:
            busy = [step for step in steps if step.job is not None]
            while busy:
                self.look()
                busy = [step for step in busy if step.job is not None and step.job.status().alive]
                over = [step for step in busy if time.monotonic() - began > step.probe.deadline_s]
                late += over
                for step in over:
                    _cancel(step)
                busy = [step for step in busy if step not in over]
                time.sleep(_LOOK_S)
        except BaseException:
            for step in steps:
                _cancel(step)
            raise
        return late

    def _again(self, step: _Step, answers: list[Answer]) -> list[Answer]:
        """Ask silent nodes again, each alone, where an unreachable node kept the others from answering."""
        probe, silent = step.probe, {answer.host for answer in answers if answer.data is None}
        never = {answer.host for answer in answers if answer.why is not None and answer.why.startswith(_NEVER)}
        if probe.together or not never or len(step.hosts) < 2:
            return answers
        asked = [host for host in step.hosts if host in silent]
        again: dict[str, list[Answer]] = {}
        for first in range(0, len(asked), _MOST_AT_ONCE):
            hosts = asked[first : first + _MOST_AT_ONCE]
            probes = [replace(probe, name=f"{probe.name}-{host}", hosts=(host,)) for host in hosts]
            again |= dict(zip(hosts, self.run(probes), strict=True))
        per_node = probe.ranks_per_node
        for host in asked:
            # It is left out from now on: each time, srun would take half a minute to give up.
            if (reason := again[host][0].why) is not None and reason.startswith(_NEVER):
                self.unreachable[host] = reason
        return [
            replace(again[answer.host][answer.rank % per_node], rank=answer.rank) if answer.host in again else answer
            for answer in answers
        ]


_NEVER = "never started"
_NOTHING = "its answer is empty: the function of the probe has to return what it measured"


def _cancel(step: _Step) -> None:
    if step.job is not None and step.job.status().alive:
        step.job.cancel()


def _answers(step: _Step, *, late: bool) -> list[Answer]:
    world = len(step.hosts) * step.probe.ranks_per_node
    paths = [layout.answer(step.folder, rank) for rank in range(world)]
    patience = time.monotonic() + (_LAG_S if step.job is not None and not late else 0.0)
    began = step.folder / layout.PHASES
    while not all(path.exists() for path in paths) and time.monotonic() < patience and began.is_dir():
        time.sleep(_LOOK_S)
    contents = [_content(step, rank, path, late=late) for rank, path in enumerate(paths)]
    return make_answers(contents, step.hosts, step.probe.ranks_per_node)


def _content(step: _Step, rank: int, path: Path, *, late: bool) -> Mapping[str, Any]:
    try:
        # Equal texts share memory: thousands of ranks send the same digests.
        if not isinstance(content := mapped(read_json(path.read_bytes()), sys.intern), dict):
            raise ValueError("expected an object")  # noqa: TRY004, TRY301 - as of what is not JSON
    except FileNotFoundError:
        return {"why": _why_silent(step, rank, late=late)}
    except (OSError, ValueError) as error:
        return {"why": f"its answer {path} cannot be read: {error}"}
    return content


def make_answers(contents: Sequence[Mapping[str, Any]], hosts: Sequence[str], per_node: int) -> list[Answer]:
    """The answers in the files of all ranks, in their order: each node has its own, and one without data has a reason.

    Nodes may call themselves otherwise than Slurm does, or all alike: then the order of the ranks counts.
    """
    by_rank = [host for host in hosts for _ in range(per_node)]
    named = [str(content.get("host", host)) for content, host in zip(contents, by_rank, strict=True)]
    names = named if sorted(named) == sorted(by_rank) else by_rank
    answers = []
    for rank, (content, host) in enumerate(zip(contents, names, strict=True)):
        data = content.get("data")
        why = content.get("why") or (_NOTHING if data is None else None)
        answers.append(Answer(host=host, rank=rank, local_rank=rank % per_node, data=data, why=why))
    return answers


def _why_silent(step: _Step, rank: int, *, late: bool) -> str:
    words = step.refused or (step.job.last_words() if step.job is not None else "")
    said = f": {' / '.join(words.splitlines()[-3:])}" if words else ""
    phase = ""
    with contextlib.suppress(OSError):
        phase = layout.phase(step.folder, rank).read_text(encoding="ascii", errors="replace").partition(" ")[2].strip()
    if not phase:
        return f"{_NEVER}{said}"
    if late:
        return f"hangs in phase `{phase}`: no answer within {step.probe.deadline_s:g} s"
    return f"died in phase `{phase}`{said}"


@dataclass(kw_only=True)
class Validator:
    """Runs the checks of a session."""

    settings: Settings
    session: Session
    gate: bool  # links are left unmeasured on nodes that failed another check, unless `--llmbench-gate links`
    start: Start
    look: Callable[[], None]  # called while waiting; it raises ClusterError when the nodes are gone or the session ends
    keep: Callable[[HealthRecord], None]  # takes each record as soon as it is final
    places: Places = field(default_factory=Places)  # racks and switches of the cluster
    out: dict[str, str] = field(default_factory=dict)  # unfit nodes, and why
    bad: dict[str, str] = field(default_factory=dict)  # those of them with findings; the others are unknown
    all_out: str | None = None  # a fault whose node is unknown, so that every node may be unfit
    _remembered: dict[str, tuple[float, list[tuple[str, Answer]]]] = field(default_factory=dict)
    _unreachable: dict[str, str] = field(default_factory=dict)

    def run(self, names: Sequence[str], hosts: Sequence[str], job_id: str | None) -> None:
        """Run checks on nodes, one after the other: two at once would measure each other.

        Raises ClusterError if the nodes are gone; the remaining checks then have records with that reason.
        """
        settings, system, gpu = self.settings, self.settings.system, self.settings.system.gpu
        site = Site(
            system=system.name, nodes=settings.nodes or 1, gpus_per_node=settings.gpus_of_a_node or 0,
            cpu_ranks_per_node=system.cpu_ranks_per_node, gpu_model=gpu.model if gpu else None,
            gpu_memory_gib=gpu.memory_gib if gpu else None, peak_tflops={**gpu.peak_tflops} if gpu else {},
            env=system.env, environments=system.environments, network=system.network, scale=settings.scale,
            slurm=settings.cluster == "slurm", selected=tuple(names), places=self.places.of(hosts),
        )  # fmt: skip
        for number, name in enumerate(names, 1):
            try:
                self.keep(self._one(get_check(name), site, hosts, job_id))
            except ClusterError as error:
                for left in names[number - 1 :]:
                    report, check = Report(problem=str(error)), get_check(left)
                    self.keep(
                        health_record(check, self.settings, self.session, report=report, hosts=hosts, job_id=job_id)
                    )
                raise

    def _one(self, check: Check, site: Site, hosts: Sequence[str], job_id: str | None) -> HealthRecord:
        settings = self.settings.system.validation.get(check.name, CheckSettings())
        gated = {}
        if self.gate and self.settings.gate != "links" and check.family in _GATED:
            # A node without the software has no fault.
            gated = {host: reason for host, reason in self.out.items() if f"{NOT_MEASURED}: " not in reason}
        clock = UnixClock()
        began = clock.now()
        fleet = HeldFleet(
            site, tuple(host for host in hosts if host not in gated and host not in self._unreachable),
            self.session.folder_of("check", check.name), start=self.start, look=self.look, remembered=self._remembered,
            unreachable=self._unreachable,
        )  # fmt: skip
        report = _refuse_other_nodes(self._report(check, fleet, settings, gated), hosts)
        timings = Timings(started=began, ended=clock.now())
        record = health_record(check, self.settings, self.session, report=report, hosts=hosts, job_id=job_id)
        known = {"options": settings.options, "timings": timings, "shared_s": round(fleet.shared_s, 3)}
        record = record.model_copy(update=known)
        self._learn(record)
        return record

    def _report(self, check: Check, fleet: HeldFleet, settings: CheckSettings, gated: dict[str, str]) -> Report:
        if settings.skip is not None:
            return Report(skip=f"system {self.settings.system.name} leaves it out: {settings.skip}")
        gone = {host: reason for host, reason in self._unreachable.items() if host not in gated}
        who = listed((f"{host} failed {reason}" for host, reason in gated.items()), between="; ")
        if gated and (check.scope == "cluster" or not fleet.hosts):
            return Report(skip=f"gated: {who}. --llmbench-gate links runs it all the same")
        if gone and (check.scope == "cluster" or not fleet.hosts):
            reasons = (f"{host} cannot be reached: {reason}" for host, reason in gone.items())
            return Report(problem=listed(reasons, between="; "))
        make_folder(fleet.folder)
        try:
            report = check.run(fleet, settings)
        except ClusterError:
            raise
        except ConfigError as error:
            return Report(problem=str(error))
        except Exception:  # noqa: BLE001 - a check that breaks is an ERROR of its own, and ends no other
            return Report(problem=f"the check broke:\n{traceback.format_exc()}")
        skipped = {**report.skipped, **{host: f"gated: it failed {reason}" for host, reason in gated.items()}}
        return report.model_copy(update={"skipped": skipped, "unjudged": {**gone, **report.unjudged}})

    def _learn(self, record: HealthRecord) -> None:
        for host, why in record.unfit().items():
            self.out.setdefault(host, why)
        for host, why in record.bad().items():
            self.bad.setdefault(host, why)
        if len(self._unreachable) < len(record.hosts):  # a fault of all nodes is a fault of the launch
            for host, why in self._unreachable.items():
                self.bad.setdefault(host, f"{record.check}: {why}")
        verdict, reason = record.state(None)
        if record.scope == "cluster" and verdict in {Verdict.FAIL, Verdict.ERROR} and not record.unfit():
            self.all_out = self.all_out or f"{record.check}: {reason.splitlines()[0]}"
        elif verdict is Verdict.ERROR and record.report.problem is not None:
            self.all_out = self.all_out or f"{record.check}: {record.report.problem.splitlines()[0]}"

    def why_gated(self, hosts: Sequence[str]) -> str | None:
        """The reason to keep all training off these nodes; None if the fit ones are known.

        A fault of all nodes together is settled if a later check has named its node.
        """
        if all(host in self.out for host in hosts):
            return "; ".join(f"{host} failed {self.out[host]}" for host in hosts)
        return None if self.out else self.all_out


def _refuse_other_nodes(report: Report, hosts: Sequence[str]) -> Report:
    """Refuse the report of a check that names strange nodes: its findings on them would be in no verdict."""
    named = {finding.host for finding in report.findings} | report.unjudged.keys() | report.skipped.keys()
    strange = named - {None, *hosts}
    told = listed(sorted(map(str, strange)))
    return Report(problem=f"the check tells of {told}, which it was not given") if strange else report


def health_record(
    check: Check, settings: Settings, session: Session, *, report: Report, hosts: Sequence[str] = (),
    job_id: str | None = None,
) -> HealthRecord:  # fmt: skip
    """Put a check's report on record."""
    return HealthRecord(
        session=session.id, token=session.token, check=check.name, family=check.family, scope=check.scope,
        system=settings.system.name, cluster=settings.cluster, job_id=job_id, hosts=tuple(hosts),
        gpus_per_node=settings.gpus_of_a_node or 0, folder=str(session.folder_of("check", check.name)), report=report,
    )  # fmt: skip
