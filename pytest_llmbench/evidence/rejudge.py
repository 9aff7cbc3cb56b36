"""Verdicts reached again without a cluster: of a test by its runs' logs, of a check by the answers of its probes."""

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Probe, Site, get_check
from pytest_llmbench.core.errors import ConfigError, InconclusiveError, LLMBenchError
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import Judgement, RunRecord, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence.recorded import RecordedSession
from pytest_llmbench.judging.recount import same
from pytest_llmbench.judging.references import why_not_applicable
from pytest_llmbench.plugin.output.provenance import bounds
from pytest_llmbench.plugin.verdict.compare import JudgedComparison
from pytest_llmbench.plugin.verdict.run import Run

_COMPARISON = re.compile(r"(>=|>|<=|<) (.+)")
# Checks of these families ask the nodes, and look at nothing else. Those of other packages may do anything.
_FAMILIES = {"host", "compute", "collectives", "network"}
_OURS = "pytest_llmbench.checks."


class CheckNotKeptError(Exception):
    """The report of a check needs more than the bundle has; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejudged:
    """A verdict that was reached again.

    Attributes:
        difference: how the record differs from what the logs come to; empty where it does not.
        taken: the part of it that is taken from the record, and why; empty where it was recomputed.
    """

    difference: str = ""
    taken: str = ""


def judge_test_again(judgement: Judgement, runs: Sequence[RunRecord], *, rerun: bool = False) -> Rejudged:
    """Judge a test again.

    Args:
        judgement: its verdict as it was kept.
        runs: the runs that it judged together, as their logs have them, the first one first.
        rerun: more of them were to be made if these decide nothing.
    """
    test, verdict = judgement.test, judgement.verdict
    broken = next((run for run in runs if run.problem is not None), None)
    if broken is not None and broken.problem is not None:
        if verdict in {Verdict.ERROR, Verdict.SKIP}:
            return Rejudged()
        reason = f"run {broken.key} cannot be judged: {broken.problem.kind}"
        return Rejudged(difference=f"{test}: the record says {verdict}, and {reason}")
    run = Run(*runs, may_repeat=rerun)
    reference = next((bound for bound in runs[0].recipe.references if bound.name == judgement.reference), None)
    if judgement.reference is not None and reference is None:
        where = f"is not in the recipe of run {runs[0].key}"
        return Rejudged(difference=f"{test}: its reference {judgement.reference} {where}")
    if verdict in {Verdict.SKIP, Verdict.ERROR}:
        skipped = verdict is Verdict.SKIP and reference is not None and _is_skipped(reference, run)
        return Rejudged(taken="" if skipped else f"{test}: {verdict}: {judgement.reason or 'no reason is kept'}")
    if reference is None or judgement.statistic != reference.statistic or judgement.threshold is None:
        return _judge_comparison(judgement, run)
    return _judge_reference(judgement, reference, run)


def _is_skipped(reference: Reference, run: Run) -> bool:
    no_meaning = reference.statistic not in run.record.metrics and run.record.recipe.scale == "smoke"
    return no_meaning or why_not_applicable(reference, run.machine) is not None


def _judge_reference(judgement: Judgement, reference: Reference, run: Run) -> Rejudged:
    test, kept = judgement.test, judgement.verdict
    if _is_skipped(reference, run):
        where = f"reference {reference.name} is not for {run.machine}"
        return Rejudged(difference=f"{test}: the record says {kept}, and {where}")
    measured = None
    try:
        measured = run.measured(reference.statistic)
        verdict = Verdict.PASS if measured in reference else Verdict.FAIL
    except InconclusiveError:
        verdict = Verdict.INCONCLUSIVE
    except LLMBenchError as error:
        return Rejudged(difference=f"{test}: the record says {kept}, the log {error}")
    if judgement.threshold != reference.threshold:
        bound = f"the record says {judgement.threshold}, its recipe {reference.threshold}"
        return Rejudged(difference=f"{test}: bound: {bound}")
    verdict = _expected(verdict, reference, run.records)
    if verdict is not kept:
        number = f"{reference.statistic} {measured} for {reference.asked}"
        return Rejudged(difference=f"{test}: the record says {kept}, the log {verdict}: {number}")
    return _compare_number(judgement, run.comparisons.last)


def _expected(verdict: Verdict, reference: Reference, runs: Sequence[RunRecord]) -> Verdict:
    """The verdict where a miss is expected until some day: the last one on which a run of these ended."""
    ends = [run.timings.ended for run in runs if run.timings.ended is not None]
    if reference.xfail is None or not ends or verdict is Verdict.INCONCLUSIVE:
        return verdict
    if dt.datetime.fromtimestamp(max(ends), tz=dt.UTC).date() > reference.xfail.until:
        return verdict
    return Verdict.XFAIL if verdict is Verdict.FAIL else Verdict.FAIL


def _judge_comparison(judgement: Judgement, run: Run) -> Rejudged:
    """Compare as the last comparison of a test's own body did; whatever else it demands is not kept."""
    test, verdict = judgement.test, judgement.verdict
    if judgement.statistic is None or judgement.threshold is None:
        return Rejudged(taken=f"{test}: {verdict}: what its body compares is not kept")
    match = _COMPARISON.fullmatch(judgement.threshold)
    taken = f"{test}: {verdict}: its last comparison is recomputed, the rest of its body is not kept"
    if match is None or judgement.statistic == "losses":
        return Rejudged(taken=f"{test}: {verdict}: what it was compared with is not kept")
    operator: Any = match[1]
    try:
        measured = run.measured(judgement.statistic)
        holds = measured.meets(operator, Quantity(match[2]), USUAL_BETWEEN_RUNS)
    except InconclusiveError:
        return Rejudged(taken=taken)
    except LLMBenchError as error:
        return Rejudged(difference=f"{test}: the record says {verdict}, the log {error}")
    if verdict is Verdict.PASS and not holds:
        number = f"{judgement.statistic} {measured}, which is not {judgement.threshold}"
        return Rejudged(difference=f"{test}: the record says PASS, the log {number}")
    return Rejudged(difference=_compare_number(judgement, run.comparisons.last).difference, taken=taken)


def _compare_number(judgement: Judgement, judged: JudgedComparison | None) -> Rejudged:
    """Compare the number that a test judged: that of its runs together, or of the one that decided."""
    test = judgement.test
    if judged is None or judgement.measured is None:
        return Rejudged(taken=f"{test}: {judgement.verdict}: the number that it judged is not kept")
    text, _, unit = judgement.measured.partition(" ")
    try:
        kept: float | None = float(text)
    except ValueError:
        kept = None
    number, decision = judged.decisive.metric, judged.decision
    if unit != number.unit or not same(kept, number.value):
        both = f"the record says {judgement.measured}, the log {number.value!r} {number.unit}"
        return Rejudged(difference=f"{test}: {judgement.statistic}: {both}")
    computed: dict[str, float | str | None] = {
        "value": number.value,
        "unit": number.unit,
        "low": decision.low if decision is not None else None,
        "high": decision.high if decision is not None else None,
        "at_least": None,
        "at_most": None,
        **bounds(judgement.threshold, number.unit),
    }
    for name in sorted(judgement.model_fields_set & computed.keys()):
        if not same(getattr(judgement, name), computed[name]):
            both = f"the record says {getattr(judgement, name)}, the log {computed[name]}"
            return Rejudged(difference=f"{test}: {name}: {both}")
    return Rejudged()


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
            CheckNotKeptError: always.
        """
        raise CheckNotKeptError("it looks at files of the nodes")

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Read the answers of probes, in the order in which they were asked.

        Raises:
            CheckNotKeptError: one of them has not answered.
        """
        answers = []
        for probe in probes:
            self._count += 1
            answers.append(self._answers(self.steps / f"{self._count:03d}-{probe.name}", probe))
        return answers

    def once(self, probe: Probe) -> list[Answer]:
        """Read the answers of a probe that this check asked, or another one before it.

        Raises:
            CheckNotKeptError: no check asked it, or a rank has not answered.
        """
        if (self.steps / f"{self._count + 1:03d}-{probe.name}").is_dir():
            return self.run([probe])[0]
        for place in sorted(self.checks.glob(f"*/{layout.STEPS}/*-{probe.name}")):
            task = _read_object(place / layout.TASK)
            if (task.get("entry"), task.get("config")) == (probe.entry, json.loads(json.dumps(probe.config))):
                return self._answers(place, probe)
        raise CheckNotKeptError(f"the answers of its probe {probe.name} are not in the bundle")

    def _answers(self, folder: Path, probe: Probe) -> list[Answer]:
        answers, per_node = [], probe.ranks_per_node
        hosts = [host for host in self.hosts if probe.hosts is None or host in probe.hosts]
        for rank in range(len(hosts) * per_node):
            kept = _read_object(layout.answer(folder, rank))
            host = str(kept.get("host", hosts[rank // per_node]))
            answers.append(
                Answer(host=host, rank=rank, local_rank=rank % per_node, data=kept.get("data"), why=kept.get("why"))
            )
        return answers


def judge_check_again(record: HealthRecord, session: RecordedSession) -> Report:
    """Judge a check by the answers in its folder.

    Raises:
        CheckNotKeptError: it cannot be judged by answers alone.
        LLMBenchError: the check refuses them.
    """
    kept, report = session.system, record.report
    if report.problem is not None or report.skip is not None or report.skipped:
        raise CheckNotKeptError(f"it was not made, or not everywhere: {report.problem or report.skip or 'gated'}")
    if kept is None or not kept.bare:
        raise CheckNotKeptError("its system sets variables or environments, which are not kept")
    try:
        check = get_check(record.check)
    except ConfigError as error:
        raise CheckNotKeptError(f"the check cannot be used here: {error}") from error
    if record.family not in _FAMILIES or not type(check).__module__.startswith(_OURS):
        raise CheckNotKeptError("it looks at more than the answers of its probes")
    gpu, checks = kept.gpu, session.folder / layout.FOLDERS["check"]
    site = Site(
        system=kept.name, nodes=kept.nodes or 1, gpus_per_node=record.gpus_per_node,
        cpu_ranks_per_node=kept.cpu_ranks_per_node, gpu_model=gpu.model if gpu else None,
        gpu_memory_gib=gpu.memory_gib if gpu else None, peak_tflops={**gpu.peak_tflops} if gpu else {},
        scale=kept.scale, slurm=record.cluster == "slurm", selected=session.plan.checks,
    )  # fmt: skip
    fleet = RecordedFleet(site, record.hosts, steps=checks / record.check / layout.STEPS, checks=checks)
    return check.run(cast("Fleet", fleet), kept.validation.get(record.check, CheckSettings()))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckNotKeptError(f"an answer of its probes is not there, or cannot be read: {path.name}") from error
    return content if isinstance(content, dict) else {}
