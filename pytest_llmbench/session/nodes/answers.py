"""Checks of a session that are judged again, by the answers of their probes instead of the nodes."""

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from pytest_llmbench import __version__
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Probe, Site, get_check
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.recount import differences
from pytest_llmbench.session.agreement import Agreement
from pytest_llmbench.session.nodes.validation import make_answers

# Checks of these families use the answers of the nodes alone. Checks of other packages may use other sources.
_FAMILIES = {"host", "compute", "collectives", "network"}
_OURS = "pytest_llmbench.checks."


class CheckNotKeptError(Exception):
    """The report of a check needs more than the bundle has; the message names it."""


@dataclass
class RecordedFleet:
    """The answers of a session's probes instead of its nodes. See `checks.base.Fleet`.

    `steps` is the folder of the check's probes, `checks` that of all checks, whose probes it may share.
    """

    site: Site
    hosts: tuple[str, ...]
    _: KW_ONLY
    steps: Path
    checks: Path
    _count: int = 0

    @property
    def folder(self) -> NoReturn:
        """Raise CheckNotKeptError: a check that looks at its folder looks at more than answers."""
        raise CheckNotKeptError("it looks at files of the nodes")

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Read the answers of probes, in the order of asking. Raises CheckNotKeptError: one has not answered."""
        answers = []
        for probe in probes:
            self._count += 1
            answers.append(self._answers(self.steps / f"{self._count:03d}-{probe.name}", probe))
        return answers

    def once(self, probe: Probe) -> list[Answer]:
        """Read the answers of a probe of this or an earlier check. Raises CheckNotKeptError: it has not answered."""
        if (self.steps / f"{self._count + 1:03d}-{probe.name}").is_dir():
            return self.run([probe])[0]
        for place in sorted(self.checks.glob(f"*/{layout.STEPS}/*-{probe.name}")):
            task = _read_object(place / layout.TASK)
            if (task.get("entry"), task.get("config")) == (probe.entry, json.loads(json.dumps(probe.config))):
                return self._answers(place, probe)
        raise CheckNotKeptError(f"the answers of its probe {probe.name} are not kept")

    def _answers(self, folder: Path, probe: Probe) -> list[Answer]:
        hosts = [host for host in self.hosts if probe.hosts is None or host in probe.hosts]
        ranks = range(len(hosts) * probe.ranks_per_node)
        return make_answers([_read_object(layout.answer(folder, rank)) for rank in ranks], hosts, probe.ranks_per_node)


def judge_check_again(record: HealthRecord, agreement: Agreement) -> Report:
    """Judge a check by the answers in the folder of its session.

    Raises CheckNotKeptError if it cannot be judged by answers alone, and LLMBenchError if the check refuses them.
    """
    kept, report = agreement.kept, record.report
    if report.problem is not None or report.skip is not None or report.skipped:
        raise CheckNotKeptError(f"it was not made, or not everywhere: {report.problem or report.skip or 'gated'}")
    if (plan := agreement.plan) is None or kept is None or not kept.bare:
        raise CheckNotKeptError("its plan or system is not kept, or sets variables or environments, which are not")
    try:
        check = get_check(record.check)
    except ConfigError as error:
        raise CheckNotKeptError(f"the check cannot be used here: {error}") from error
    if record.family not in _FAMILIES or not type(check).__module__.startswith(_OURS):
        raise CheckNotKeptError("it looks at more than the answers of its probes")
    system, gpu, checks = kept.system, kept.system.gpu, agreement.folder / layout.FOLDERS["check"]
    site = Site(
        system=system.name, nodes=kept.nodes or 1, gpus_per_node=record.gpus_per_node,
        cpu_ranks_per_node=system.cpu_ranks_per_node, gpu_model=gpu.model if gpu else None,
        gpu_memory_gib=gpu.memory_gib if gpu else None, peak_tflops={**gpu.peak_tflops} if gpu else {},
        network=system.network, scale=kept.scale, slurm=record.cluster == "slurm", selected=plan.checks,
        places=_kept_places(report.evidence.get("places")),
    )  # fmt: skip
    fleet = RecordedFleet(site, record.hosts, steps=checks / record.check / layout.STEPS, checks=checks)
    return check.run(cast("Fleet", fleet), system.validation.get(record.check, CheckSettings()))


def _kept_places(levels: Any) -> Places:
    """Racks and switches by the evidence of the check, the only place that has them afterwards."""
    groups = [*levels.values()] if isinstance(levels, dict) else [None]
    known = all(isinstance(group, dict) and all(isinstance(name, str) for name in group.values()) for group in groups)
    return Places(levels) if known else Places()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise CheckNotKeptError(f"an answer of its probes is not there, or cannot be read: {path.name}") from error
    return content if isinstance(content, dict) else {}


def differences_of_answers(record: HealthRecord, agreement: Agreement) -> list[str]:
    """How the report of a check differs from what its answers come to; empty where these are too little.

    Another version may judge them otherwise.
    """
    if record.made_by is not None and record.made_by.llmbench_version != __version__:
        return []
    try:
        return differences_of_report(record, judge_check_again(record, agreement))
    except CheckNotKeptError:
        return []
    except LLMBenchError as error:
        return [f"its record has a report, and its answers come to: {error}"]


def differences_of_report(record: HealthRecord, again: Report) -> list[str]:
    """How the report of a check differs from the one that its answers come to."""
    signed = record.made_by is not None and record.made_by.llmbench_version == __version__
    names = [name for name in Report.model_fields if signed or name in record.report.model_fields_set]
    pairs = [(name, getattr(record.report, name), getattr(again, name)) for name in names]
    return [text for pair in pairs for text in differences(*pair, whole=signed)]
