"""The certificate of a session: each clause of a contract, its demand, the measured number, and whether it is met."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.quantity import UNITS, Quantity, counted, utc
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import HealthRecord, Reading
from pytest_llmbench.core.record.records import Record, Verdict
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout
from pytest_llmbench.evidence.recorded import RecordedSession
from pytest_llmbench.judging.references import applies

NOT_MEASURED = "NOT MEASURED"
_JUDGED = {Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.XFAIL}
_WORST_FIRST = (
    Verdict.ERROR, Verdict.FAIL, Verdict.INCOMPLETE, Verdict.INCONCLUSIVE, Verdict.XFAIL, Verdict.SKIP, Verdict.PASS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateRow:
    """One demand of a clause on one run or check; without a number, `measured` and `interval` are empty.

    `reason` is that of any verdict but PASS, `sha256` are the digests of the records that the verdict rests on.
    """

    reference: Reference
    subject: str
    measured: str = ""
    interval: str = ""
    verdict: str = NOT_MEASURED
    reason: str = ""
    sha256: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    floor: str | None = None

    @property
    def clause(self) -> str:
        """The clause."""
        return str(self.reference.clause)

    @property
    def demanded(self) -> str:
        """Statistic and bound."""
        floor = f" (a floor, set for {self.floor})" if self.floor else ""
        return f"{self.reference.statistic} {self.reference.asked}{floor}"

    @property
    def met(self) -> bool:
        """True if the demand was measured and met."""
        return self.verdict == Verdict.PASS


def make_certificate(session: RecordedSession, key_id: str | None) -> str:
    """Write the certificate as a page to sign, which needs no other file. The same records and key give the same page.

    `key_id` is that of the key which signs the bundle; None without one.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  # a tenth of a second

    rows = list(certificate_rows(session))
    timings = [record.timings for record in session.records]
    times = [time for timing in timings for time in (timing.started, timing.ended) if time is not None]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=FileSystemLoader(Path(__file__).parent),
    )  # fmt: skip
    environment.filters["plain"] = harmless
    return environment.get_template("certificate.html.j2").render(
        session=session,
        key_id=key_id,
        version=__version__,
        clauses={row.clause: [other for other in rows if other.clause == row.clause] for row in rows},
        required=sorted(
            (name.removeprefix("clause[").removesuffix("]"), verdict)
            for name, verdict in session.properties.items()
            if name.startswith("clause[")
        ),
        works={key: run.work for key, run in session.runs.items()},
        hosts=sorted({host for record in session.records for host in record.hosts}),
        systems=sorted({record.system for record in session.records}),
        began=utc(min(times, default=None)) or "unknown",
        ended=utc(max(times, default=None)) or "unknown",
        versions=sorted({(name, value) for run in session.runs.values() for name, value in run.versions.items()}),
    )


def certificate_rows(session: RecordedSession) -> Iterator[CertificateRow]:
    """Yield the demands of all clauses, in the order of runs and checks, also those that nothing was measured for."""
    for run in session.plan.runs:
        if run.repeat > 1:
            continue  # judged together with the first
        for reference in run.recipe.references:
            if reference.clause is not None:
                yield _row_of_run(session, run.key, reference)
    for check, settings in session.system.system.validation.items() if session.system is not None else ():
        for reference in settings.references:
            if reference.clause is not None:
                yield _row_of_check(session, check, reference)


def bounded_readings(record: HealthRecord, session: RecordedSession) -> Iterator[tuple[Reference, Reading]]:
    """Yield each reference of the session's system for a check with each reading that it bounds."""
    system = session.system.system if session.system is not None else None
    if system is None or record.check not in system.validation:
        return
    device = system.gpu.model if record.gpus_per_node and system.gpu is not None else "cpu"
    for reference in system.validation[record.check].references:
        for reading in record.report.readings:
            if _is_comparable(reference, reading) and applies(reference, reading, record.system, device):
                yield reference, reading


def _row_of_run(session: RecordedSession, key: str, reference: Reference) -> CertificateRow:
    record, row = session.runs.get(key), partial(CertificateRow, reference=reference, subject=f"run {key}")
    if record is None:
        return row(reason="the session has no record of this run")
    row = partial(row, hosts=record.hosts)
    judgements = [judgement for judgement in record.judgements if judgement.reference == reference.name]
    worst = min(judgements, key=lambda judgement: _WORST_FIRST.index(judgement.verdict), default=None)
    if worst is None:
        reason = record.problem.message if record.problem is not None else "no test of this session applied it"
        return row(reason=reason, sha256=_digests(session, [record]))
    if worst.verdict not in _JUDGED or worst.statistic != reference.statistic or worst.measured is None:
        reason = f"{worst.verdict}: {worst.reason or 'its test judged another number'}"
        return row(reason=reason, sha256=_digests(session, [record]))
    together = [run for run in session.runs.values() if any(other.test == worst.test for other in run.judgements)]
    metric, interval = record.metrics.get(reference.statistic), ""
    if len(together) == 1 and metric is not None and metric.low is not None and metric.high is not None:
        interval = f"{Quantity(metric.low, metric.unit)} to {Quantity(metric.high, metric.unit)}"
    measured = worst.measured
    with suppress(LLMBenchError):  # the kept text, if it cannot be read as a quantity
        measured = str(Quantity(worst.measured))
    return row(
        measured=measured, interval=interval, verdict=str(worst.verdict), reason=worst.reason or "",
        sha256=_digests(session, together), floor=worst.floor,
        hosts=tuple(dict.fromkeys(host for run in together for host in run.hosts)),
    )  # fmt: skip


def _row_of_check(session: RecordedSession, check: str, reference: Reference) -> CertificateRow:
    record, row = session.checks.get(check), partial(CertificateRow, reference=reference, subject=f"check {check}")
    if record is None:
        return row(reason="the session has no record of this check")
    digests, row = _digests(session, [record]), partial(row, hosts=record.hosts)
    readings = [reading for bound, reading in bounded_readings(record, session) if bound.name == reference.name]
    if not readings:
        reason = "it has no measurement for this bound on this machine"
        return row(reason=reason, sha256=digests)
    missed = [reading for reading in readings if reference.missed_by(reading.quantity) is not None]
    state, reason = record.state(None)
    if missed:
        state = Verdict.FAIL
        reason = reason or f"of {counted(len(readings), 'reading')}, {len(missed)} missed it"
    by_value = sorted(missed or readings, key=lambda reading: reading.quantity.base)
    lowest, highest = by_value[0], by_value[-1]
    shown = lowest if reference.at_least is not None else highest
    return row(
        measured=" ".join(filter(None, (str(shown.quantity), shown.host and f"on {shown.host}", shown.subject))),
        interval=f"{counted(len(readings), 'reading')}, {lowest.quantity} to {highest.quantity}",
        verdict=str(state) if state in {Verdict.PASS, Verdict.FAIL} else NOT_MEASURED,
        reason="" if state is Verdict.PASS else reason.partition("\n")[0],
        sha256=digests,
    )


def _is_comparable(reference: Reference, reading: Reading) -> bool:
    if reading.statistic != reference.statistic or reading.unit not in UNITS:
        return False
    try:
        return all(bound.to(reading.unit) for _, bound in reference.bounds)
    except LLMBenchError:
        return False


def _digests(session: RecordedSession, records: Iterable[Record]) -> tuple[str, ...]:
    paths = [session.folder / layout.FOLDERS[record.about] / record.name / layout.RECORD for record in records]
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
