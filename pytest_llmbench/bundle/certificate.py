"""The certificate of a session: each clause of a contract, its demand, the measured number, and whether it is met."""

import datetime as dt
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pytest_llmbench import __version__
from pytest_llmbench.bundle.of_checks import bounded
from pytest_llmbench.bundle.recorded import RecordedSession
from pytest_llmbench.bundle.statement import reasons_against, result_of
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Judgement, Record, RunRecord, Verdict
from pytest_llmbench.core.text import harmless

NOT_MEASURED = "NOT MEASURED"
_JUDGED = {Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.XFAIL}


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateRow:
    """One demand of a clause on one run or check.

    Attributes:
        clause: the clause.
        subject: the run or the check.
        demanded: statistic and bound.
        why: the reason for the bound and its source.
        measured: the number with its unit; empty without one.
        interval: the interval around it; empty without one.
        verdict: the verdict, or `NOT MEASURED`.
        reason: the reason for any verdict but PASS.
        sha256: digests of the records that it rests on.
    """

    clause: str
    subject: str
    demanded: str
    why: str
    measured: str
    interval: str
    verdict: str
    reason: str
    sha256: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether the demand was measured and met."""
        return self.verdict == Verdict.PASS


def make_certificate(session: RecordedSession) -> str:
    """Write the certificate as one page that needs no other file. The same records give the same page."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # nothing else of the package needs it

    rows = list(certificate_rows(session))
    clauses = {row.clause: [each for each in rows if each.clause == row.clause] for row in rows}
    records = (*session.runs.values(), *session.checks.values())
    times = [time for record in records for time in (record.timings.started, record.timings.ended) if time is not None]
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters["plain"] = harmless
    text = resources.files("pytest_llmbench.bundle").joinpath("certificate.html.j2").read_text(encoding="utf-8")
    return page.from_string(text).render(
        session=session,
        version=__version__,
        result=result_of(session),
        against=list(reasons_against(session)),
        clauses=clauses,
        required=sorted(
            (name.removeprefix("clause[").removesuffix("]"), verdict)
            for name, verdict in session.properties.items()
            if name.startswith("clause[")
        ),
        hosts=sorted({host for record in records for host in record.hosts}),
        systems=sorted({record.system for record in records}),
        began=_iso(min(times, default=None)),
        ended=_iso(max(times, default=None)),
        versions=sorted({(name, value) for run in session.runs.values() for name, value in run.versions.items()}),
    )


def certificate_rows(session: RecordedSession) -> Iterator[CertificateRow]:
    """Yield the demands of all clauses, in the order of runs and checks, also those that nothing was measured for."""
    for run in session.plan.runs:
        if run.repeat > 1:
            continue  # judged together with the first
        for reference in run.recipe.references:
            if reference.clause is not None:
                yield _of_run(session, run.key, reference)
    if session.system is not None:
        for check, settings in session.system.validation.items():
            for reference in settings.references:
                if reference.clause is not None:
                    yield _of_check(session, check, reference)


def _of_run(session: RecordedSession, key: str, reference: Reference) -> CertificateRow:
    record = session.runs.get(key)
    if record is None:
        return _row(reference, f"run {key}", reason="the session has no record of this run")
    found = [each for each in record.judgements if each.reference == reference.name]
    if not found:
        reason = record.problem.message if record.problem is not None else "no test of this session applied it"
        return _row(reference, f"run {key}", reason=reason, sha256=_digests(record, session))
    worst = min(found, key=lambda each: list(_WORST).index(each.verdict))
    if worst.verdict not in _JUDGED or worst.statistic != reference.statistic or worst.measured is None:
        reason = f"{worst.verdict}: {worst.reason or 'its test judged another number'}"
        return _row(reference, f"run {key}", reason=reason, sha256=_digests(record, session))
    together = [other for other in session.runs.values() if any(each.test == worst.test for each in other.judgements)]
    return _row(
        reference,
        f"run {key}",
        measured=_shown(worst),
        interval=_interval(record, reference.statistic) if len(together) == 1 else "",
        verdict=str(worst.verdict),
        reason=worst.reason or "",
        sha256=tuple(digest for each in together for digest in _digests(each, session)),
    )


_WORST = (
    Verdict.ERROR, Verdict.FAIL, Verdict.INCOMPLETE, Verdict.INCONCLUSIVE, Verdict.XFAIL, Verdict.SKIP, Verdict.PASS,
)  # fmt: skip


def _of_check(session: RecordedSession, check: str, reference: Reference) -> CertificateRow:
    record, subject = session.checks.get(check), f"check {check}"
    if record is None:
        return _row(reference, subject, reason="the session has no record of this check")
    digests = _digests(record, session)
    readings = [reading for each, reading in bounded(record, session) if each.name == reference.name]
    if not readings:
        reason = "it measured nothing that this bound is for, on this machine"
        return _row(reference, subject, reason=reason, sha256=digests)
    missed = [reading for reading in readings if reference.missed_by(reading.quantity) is not None]
    state, why = record.state(None)
    lowest = min((missed or readings), key=lambda reading: reading.quantity.base)
    highest = max((missed or readings), key=lambda reading: reading.quantity.base)
    shown = lowest if reference.at_least is not None else highest
    verdict = Verdict.FAIL if missed else state
    return _row(
        reference,
        subject,
        measured=" ".join(filter(None, (str(shown.quantity), shown.host and f"on {shown.host}", shown.subject))),
        interval=f"{len(readings)} readings, {lowest.quantity} to {highest.quantity}",
        verdict=str(verdict) if verdict is Verdict.PASS or missed or state is Verdict.FAIL else NOT_MEASURED,
        reason="" if verdict is Verdict.PASS else (why.splitlines() or [f"{len(missed)} readings miss it"])[0],
        sha256=digests,
    )


def _row(
    reference: Reference, subject: str, *, measured: str = "", interval: str = "", verdict: str = NOT_MEASURED,
    reason: str = "", sha256: tuple[str, ...] = (),
) -> CertificateRow:  # fmt: skip
    return CertificateRow(
        clause=str(reference.clause), subject=subject, demanded=f"{reference.statistic} {reference.asked}",
        why=f"{reference.why} [{reference.source}, {reference.date}]", measured=measured, interval=interval,
        verdict=verdict, reason=reason, sha256=sha256,
    )  # fmt: skip


def _shown(judgement: Judgement) -> str:
    """The measured number for people; as it was kept if it is none."""
    try:
        return str(Quantity(str(judgement.measured)))
    except LLMBenchError:
        return str(judgement.measured)


def _interval(record: RunRecord, statistic: str) -> str:
    metric = record.metrics.get(statistic)
    if metric is None or metric.low is None or metric.high is None:
        return ""
    return f"{Quantity(metric.low, metric.unit)} to {Quantity(metric.high, metric.unit)}"


def _digests(record: Record, session: RecordedSession) -> tuple[str, ...]:
    path = session.folder / ("runs" if record.about == "run" else "checks") / record.name / Path(record.path).name
    return (hashlib.sha256(path.read_bytes()).hexdigest(),)


def _iso(time: float | None) -> str:
    return "unknown" if time is None else dt.datetime.fromtimestamp(time, tz=dt.UTC).isoformat(timespec="seconds")
