"""Checks in a bundle: whether their verdicts follow from their findings, and their findings from what they measured."""

from collections.abc import Iterator

from pytest_llmbench.bundle.recorded import RecordedSession
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.quantity import UNITS
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.judging.references import applies


def differences_of_check(record: HealthRecord, session: RecordedSession) -> Iterator[str]:
    """Yield how the verdicts on a check differ from what its record comes to.

    The answers of its probes are in the bundle, and are not read again: readings are taken from the record.
    """
    slots = {test.test: test.slot for test in session.plan.tests if test.check == record.check}
    for judgement in record.judgements:
        if judgement.test not in slots:
            yield f"{judgement.test}: check {record.check} has a verdict of it, and the plan does not have the test"
            continue
        state, _ = record.state(slots[judgement.test])
        # A test's own body may demand more than that nothing was found. It cannot demand less.
        if judgement.verdict is Verdict.PASS and state is not Verdict.PASS:
            yield f"{judgement.test}: the record says PASS, and its findings come to {state}"
    for reference, reading in bounded(record, session):
        missed = reference.missed_by(reading.quantity)
        told = any(
            finding.severity.fails and (finding.host, finding.subject) == (reading.host, reading.subject)
            for finding in record.report.findings
        )
        if missed is not None and not told:
            where = " ".join(filter(None, (reading.host, reading.subject)))
            number = f"{reading.statistic} {reading.quantity}"
            yield f"check {record.check}: {where}: {number} misses {reference.asked}, and there is no finding"


def bounded(record: HealthRecord, session: RecordedSession) -> Iterator[tuple[Reference, Reading]]:
    """Yield each reference of the session's system for a check with each reading that it bounds."""
    system = session.system
    if system is None or record.check not in system.validation:
        return
    device = system.gpu.model if record.gpus_per_node and system.gpu is not None else "cpu"
    for reference in system.validation[record.check].references:
        for reading in record.report.readings:
            if reading.statistic != reference.statistic or not _comparable(reference, reading):
                continue
            if applies(reference, reading, record.system, device):
                yield reference, reading


def _comparable(reference: Reference, reading: Reading) -> bool:
    try:
        return reading.unit in UNITS and all(bound.to(reading.unit) for _, bound in reference.bounds)
    except LLMBenchError:
        return False
