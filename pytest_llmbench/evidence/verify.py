"""Verifies a bundle: its bytes, its signature, and every number and verdict that follows from its logs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from securesystemslib.signer import Key

from pytest_llmbench import __version__
from pytest_llmbench.cluster.system import SYSTEMS, System, load_system
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.evidence.archive import BundleError
from pytest_llmbench.evidence.bundle import MOST_BYTES, OpenedBundle, open_bundle
from pytest_llmbench.evidence.certificate import bounded_readings, make_certificate
from pytest_llmbench.evidence.contents import CERTIFICATE, MADE_AGAIN
from pytest_llmbench.evidence.recheck import (
    Rejudged,
    differences_of_derived,
    differences_of_junit,
    judge_test_again,
)
from pytest_llmbench.evidence.recorded import RecordedSession, make_predicate, read_session
from pytest_llmbench.judging.recount import count_numbers
from pytest_llmbench.session.agreement import Agreement
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.nodes.answers import CheckNotKeptError, differences_of_report, judge_check_again
from pytest_llmbench.session.replay import OF_LOGS, as_replayed, differences_of_record, recount

_LONGEST = 300


@dataclass(kw_only=True, slots=True)
class Verification:
    """The outcome of verifying a bundle whose bytes are as they were written."""

    session: str
    result: str  # the result that it states: `PASSED`, `WARNED` or `FAILED`
    files: int
    signer: str  # id of the trusted key that signed it
    # How many were read, judged, computed and reached again
    runs: int = 0
    checks: int = 0
    numbers: int = 0
    verdicts: int = 0
    differences: list[str] = field(default_factory=list)  # each contradiction between a record and its logs
    not_recomputed: list[str] = field(default_factory=list)  # runs with a result whose logs could not be read, and why
    taken: list[str] = field(default_factory=list)  # facts that are taken from the records, and why
    left_out: list[str] = field(default_factory=list)

    @property
    def objections(self) -> list[str]:
        """The reasons why it is not verified; empty if it is."""
        differences = f"{counted(len(self.differences), 'difference')} between records and logs"
        nothing = "nothing was computed again: it has no run and no check that could be"
        return [
            *([differences] if self.differences else []), *self.not_recomputed, *([] if self.numbers else [nothing])
        ]  # fmt: skip

    @property
    def verified(self) -> bool:
        """True if everything that was computed again agrees with the records."""
        return not self.objections

    @property
    def document(self) -> dict[str, Any]:
        """The verification as plain data."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"verified": self.verified, "objections": self.objections, **facts}

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        yield f"session        {self.session}: {self.result}"
        yield f"bytes          as they were written, {counted(self.files, 'file')}"
        yield f"signature      key {self.signer}"
        done = {"run": self.runs, "check": self.checks, "number": self.numbers, "verdict": self.verdicts}
        yield f"computed again {', '.join(counted(number, word) for word, number in done.items())}"
        yield from (f"difference: {text}" for text in self.differences)
        yield from (f"taken from the record: {text}" for text in self.taken)
        yield from (f"not in the bundle: {text}" for text in self.left_out)
        yield "VERIFIED" if self.verified else f"NOT VERIFIED: {'; '.join(self.objections)}"


def verify(path: Path, keys: Sequence[Key], most: int = MOST_BYTES, law: Law | None = None) -> Verification:
    """Verify a bundle whose files have at most `most` bytes together, with the public keys that are trusted.

    Without a `law`, no run is compared with a recipe of today. Raises BundleError if no trusted key signed it, it was
    altered, or it does not hold a session, ConfigError if it cannot be read, and OSError if it cannot be read or
    unpacked.
    """
    with open_bundle(path, keys, most) as bundle:
        try:
            return _verify(bundle, law)
        except (LLMBenchError, ValidationError) as error:
            raise BundleError(f"a file in it is damaged: {' '.join(str(error).split())[:_LONGEST]}") from error


def _verify(bundle: OpenedBundle, law: Law | None) -> Verification:
    session = read_session(bundle.folder)
    outcome = Verification(
        session=session.id,
        result=str(bundle.predicate.get("result")),
        files=len(bundle.manifest.files),
        signer=bundle.signer,
        left_out=[f"{path}: {reason}" for path, reason in bundle.manifest.left_out.items()],
    )
    agreement = Agreement(session.folder)
    _verify_verdicts(session, _verify_runs(session, agreement, bundle, outcome, law), outcome)
    _verify_checks(session, agreement, outcome)
    outcome.differences += [
        *differences_of_junit(session), *differences_of_derived(session), *_differences_of_bundle(session, bundle),
    ]  # fmt: skip
    return outcome


def _verify_runs(
    session: RecordedSession, agreement: Agreement, bundle: OpenedBundle, outcome: Verification, law: Law | None
) -> dict[str, RunRecord]:
    """Read the logs of all runs again; return the records that they give, by key."""
    system, again = _system_of(session, outcome), {}
    for key, record in session.runs.items():
        folder, logs = session.folder / layout.FOLDERS["run"] / key, bundle.manifest.replayed.get(key)
        if record.replayed is not None and logs is None:
            outcome.not_recomputed.append(f"run {key}: its logs are not in the bundle")
            continue
        try:
            get_engine(record.recipe.engine)
        except ConfigError as error:
            unread = outcome.not_recomputed if record.metrics or record.problem is None else outcome.taken
            unread.append(f"run {key}: its engine cannot be used here: {error}")
            continue
        own_logs = session.folder / logs if logs else None
        replayed = as_replayed(record, folder, own_logs)
        recounted = recount(record.recipe, replayed, system)
        again[key] = record.model_copy(update=dict(recounted.outcome))
        outcome.runs += 1
        outcome.numbers += count_numbers(again[key].model_dump(include=set(OF_LOGS)))
        problem, seen = record.problem, recounted.problem
        if problem is not None and (seen is None or seen.kind != problem.kind):
            outcome.taken.append(f"run {key}: its problem, {problem.kind}: {problem.message}")
        unlike = [*differences_of_record(record, recounted), *agreement.objections(record)]
        outcome.differences += [f"run {key}: {text}" for text in unlike]
        if law is not None:
            wrong, note = (tell(record.recipe, replayed.topology) for tell in (law.wrong_work, law.note))
            outcome.differences += [f"run {key}: wrong_work: {wrong}"] if wrong else []
            outcome.taken += [f"run {key}: {note}"] if note else []
    for key in {run.key for run in session.plan.runs} - session.runs.keys():
        outcome.differences.append(f"run {key}: the plan of the session has it, and there is no record")
    return again


def _system_of(session: RecordedSession, outcome: Verification) -> System:
    if session.system is not None:
        return session.system.system
    name = next((record.system for record in session.runs.values()), "")
    outcome.taken.append(f"system {name}: its facts are not in the bundle; those that are installed here were used")
    try:
        return load_system(name, SYSTEMS.usable().values())
    except ConfigError:
        return System(name="elsewhere", cluster="slurm")


def _verify_verdicts(session: RecordedSession, again: Mapping[str, RunRecord], outcome: Verification) -> None:
    """Judge every test of a run again, by all the runs that it judged together."""
    runs: dict[str, list[RunRecord]] = {}
    kept: dict[str, Judgement] = {}
    for key, record in session.runs.items():
        for judgement in record.judgements:
            if kept.setdefault(judgement.test, judgement) != judgement:
                outcome.differences.append(f"{judgement.test}: the records of its runs give it different verdicts")
            runs.setdefault(judgement.test, []).extend([again[key]] if key in again else [])
    declared = {test.test for test in session.plan.tests}
    for test, judgement in kept.items():
        together = sorted(runs[test], key=lambda run: run.repeat)
        if test in declared and together:
            rerun = session.system is not None and session.system.rerun
            rejudged = judge_test_again(judgement, together, rerun=rerun)
        else:
            compared = "how it compares with earlier sessions, or with other nodes"
            rejudged = Rejudged(taken="its runs could not be judged again" if test in declared else compared)
        outcome.differences += [f"{test}: {rejudged.difference}"] if rejudged.difference else []
        outcome.taken += [f"{test}: {judgement.verdict}: {rejudged.taken}"] if rejudged.taken else []
        outcome.verdicts += not (rejudged.difference or rejudged.taken)


def _verify_checks(session: RecordedSession, agreement: Agreement, outcome: Verification) -> None:
    """Judge each check by its findings and readings, and these by the answers of its probes where they are enough."""
    for record in session.checks.values():
        name = f"check {record.check}"
        outcome.differences += _differences_of_check(record, session)
        outcome.differences += [f"{name}: {text}" for text in agreement.objections(record)]
        try:
            report = judge_check_again(record, agreement)
        except CheckNotKeptError as error:
            outcome.taken.append(f"{name}: what was found and measured: {error}")
        except LLMBenchError as error:
            outcome.differences.append(f"{name}: its record has a report, and its answers come to: {error}")
        else:
            outcome.checks += 1
            outcome.numbers += count_numbers(report.model_dump(include={"readings"}))
            outcome.differences += [f"{name}: {text}" for text in differences_of_report(record, report)]


def _differences_of_check(record: HealthRecord, session: RecordedSession) -> Iterator[str]:
    """Yield the verdicts on a check that no test of the plan gave, and how its findings differ from its readings."""
    planned = {test.test for test in session.plan.tests if test.check == record.check}
    for test in (judgement.test for judgement in record.judgements if judgement.test not in planned):
        yield f"{test}: check {record.check} has a verdict of it, and the plan does not have the test"
    failed = {(finding.host, finding.subject) for finding in record.report.findings if finding.severity.fails}
    for reference, reading in bounded_readings(record, session):
        if reference.missed_by(reading.quantity) is not None and (reading.host, reading.subject) not in failed:
            where = " ".join(filter(None, (reading.host, reading.subject)))
            number = f"{reading.statistic} {reading.quantity} misses {reference.asked}"
            yield f"check {record.check}: {where}: {number}, and there is no finding"


def _differences_of_bundle(session: RecordedSession, bundle: OpenedBundle) -> Iterator[str]:
    """Yield how the statement and the certificate differ from the session, and which files no bundle of ours has."""
    for file in bundle.manifest.files:
        if file.path in MADE_AGAIN:
            yield f"{file.path}: {MADE_AGAIN[file.path]}; a bundle leaves it out, and this one has it"
    predicate = make_predicate(session, {file.path: file.sha256 for file in bundle.manifest.files})
    for name in predicate.keys() | bundle.predicate.keys():
        if (stated := bundle.predicate.get(name)) != (due := predicate.get(name)):
            yield f"the statement: {name}: it says {stated}, the session {due}"
    page = session.folder / CERTIFICATE
    # Another version may word it otherwise.
    if bundle.manifest.llmbench == __version__ and page.read_text(encoding="utf-8") != make_certificate(
        session, bundle.signer
    ):
        yield f"{CERTIFICATE}: it is not the one of these records"
