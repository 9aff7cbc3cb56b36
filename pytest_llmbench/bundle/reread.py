"""A check judged once more by the answers that its probes left, without a node."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from pytest_llmbench.bundle.recompute import compared
from pytest_llmbench.bundle.recorded import RecordedSession
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Probe, Site, get_check
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.journal.kept_system import KeptSystem

# Checks of these families ask the nodes, and look at nothing else. Those of other packages may do anything.
_FAMILIES = {"host", "compute", "collectives", "network"}
_OURS = "pytest_llmbench.checks."
_COMPUTED = ("findings", "readings", "unjudged", "unbounded")


class NotKeptError(Exception):
    """The report of a check needs more than the bundle has; the message says what."""


@dataclass
class RecordedFleet:
    """The answers of a session's probes instead of its nodes. See `checks.base.Fleet`.

    Attributes:
        site: facts of the nodes.
        hosts: the nodes in the order of their slots.
        steps: folder of the check's probes.
        checks: folder of all checks, whose probes it may share.
    """

    site: Site
    hosts: tuple[str, ...]
    _: KW_ONLY
    steps: Path
    checks: Path
    _count: int = 0

    @property
    def folder(self) -> NoReturn:
        """A check that looks at its folder looks at more than answers.

        Raises:
            NotKeptError: always.
        """
        raise NotKeptError("it looks at files of the nodes")

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Read the answers of probes, in the order in which they were asked.

        Raises:
            NotKeptError: one of them has not answered.
        """
        found = []
        for probe in probes:
            self._count += 1
            found.append(self._answers(self.steps / f"{self._count:03d}-{probe.name}", probe))
        return found

    def once(self, probe: Probe) -> list[Answer]:
        """Read the answers of a probe that this check asked, or another one before it.

        Raises:
            NotKeptError: no check asked it, or a rank has not answered.
        """
        own = self.steps / f"{self._count + 1:03d}-{probe.name}"
        if own.is_dir():
            return self.run([probe])[0]
        for place in sorted(self.checks.glob(f"*/{layout.STEPS}/*-{probe.name}")):
            told = _json(place / layout.TASK)
            if (told.get("entry"), told.get("config")) == (probe.entry, json.loads(json.dumps(probe.config))):
                return self._answers(place, probe)
        raise NotKeptError(f"the answers of its probe {probe.name} are not in the bundle")

    def _answers(self, folder: Path, probe: Probe) -> list[Answer]:
        hosts = [host for host in self.hosts if probe.hosts is None or host in probe.hosts]
        found = []
        for rank in range(len(hosts) * probe.ranks_per_node):
            told = _json(layout.answer(folder, rank))
            found.append(
                Answer(
                    host=str(told.get("host", hosts[rank // probe.ranks_per_node])),
                    rank=rank,
                    local_rank=rank % probe.ranks_per_node,
                    data=told.get("data"),
                    why=told.get("why"),
                )
            )
        return found


def judged_by_answers(record: HealthRecord, session: RecordedSession) -> Report:
    """Judge a check by the answers in its folder.

    Raises:
        NotKeptError: it cannot be judged by answers alone.
        LLMBenchError: the check refuses them.
    """
    kept, report = session.system, record.report
    if report.problem is not None or report.skip is not None or report.skipped:
        raise NotKeptError(f"it was not made, or not everywhere: {report.problem or report.skip or 'gated'}")
    if kept is None or not kept.bare:
        raise NotKeptError("its system sets variables or environments, which are not kept")
    try:
        check = get_check(record.check)
    except ConfigError as error:
        raise NotKeptError(f"the check cannot be used here: {error}") from error
    if record.family not in _FAMILIES or not type(check).__module__.startswith(_OURS):
        raise NotKeptError("it looks at more than the answers of its probes")
    checks = session.folder / layout.FOLDERS["check"]
    fleet = RecordedFleet(
        _site(kept, record, session), record.hosts, steps=checks / record.check / layout.STEPS, checks=checks
    )
    return check.run(cast("Fleet", fleet), kept.validation.get(record.check, CheckSettings()))


def differences_by_answers(record: HealthRecord, report: Report) -> Iterator[str]:
    """Yield how the report in a record differs from the one that the answers come to."""
    for field in (each for each in _COMPUTED if each in record.report.model_fields_set):
        yield from compared(f"check {record.check}: {field}", getattr(record.report, field), getattr(report, field))


def _site(kept: KeptSystem, record: HealthRecord, session: RecordedSession) -> Site:
    gpu = kept.gpu
    return Site(
        system=kept.name, nodes=kept.nodes or 1, gpus_per_node=record.gpus_per_node,
        cpu_ranks_per_node=kept.cpu_ranks_per_node, gpu_model=gpu.model if gpu else None,
        gpu_memory_gib=gpu.memory_gib if gpu else None, peak_tflops={**gpu.peak_tflops} if gpu else {},
        scale=kept.scale, slurm=record.cluster == "slurm", selected=session.plan.checks,
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any]:
    try:
        told = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise NotKeptError(f"an answer of its probes is not there, or cannot be read: {path.name}") from error
    return told if isinstance(told, dict) else {}
