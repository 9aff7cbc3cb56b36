"""Verifying a bundle: its bytes, its signature, and every number and verdict that follows from its logs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__
from pytest_llmbench.bundle.certificate import make_certificate
from pytest_llmbench.bundle.contents import CERTIFICATE, MADE_AGAIN
from pytest_llmbench.bundle.derived.differences import differences_of_derived
from pytest_llmbench.bundle.of_checks import differences_of_check
from pytest_llmbench.bundle.opened import MOST_BYTES, OpenedBundle, opened
from pytest_llmbench.bundle.recompute import NotRecomputableError, count_numbers, differences, judged_again, numbers_of
from pytest_llmbench.bundle.recorded import RecordedSession, address_of, read_session
from pytest_llmbench.bundle.rejudge import rejudged
from pytest_llmbench.bundle.reread import NotKeptError, differences_by_answers, judged_by_answers
from pytest_llmbench.bundle.statement import make_predicate
from pytest_llmbench.cluster.system import SYSTEMS, System, load_system
from pytest_llmbench.core.errors import ConfigError, LLMBenchError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, RunRecord
from pytest_llmbench.core.wire import layout

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# The prefix of a verdict's name if it compares with earlier sessions.
_OF_HISTORY = "history::"


@dataclass(kw_only=True, slots=True)
class Verification:
    """The outcome of verifying a bundle whose bytes are as they were written.

    Attributes:
        session: id of its session.
        result: the result that it states: `PASSED`, `WARNED` or `FAILED`.
        files: number of its files.
        signer: id of the trusted key that signed it; None without one.
        unsigned: the reason why no trusted key has; else empty.
        runs: number of runs whose logs were read again.
        checks: number of checks whose answers were judged again.
        numbers: number of numbers that were computed from them.
        verdicts: number of verdicts that were reached again.
        differences: each contradiction between a record and its logs.
        not_recomputed: runs with a result whose logs could not be read, and why.
        taken: facts that are taken from the records, and why.
        left_out: files of the session that are not in the bundle, and why.
    """

    session: str
    result: str
    files: int
    signer: str | None
    unsigned: str
    runs: int = 0
    checks: int = 0
    numbers: int = 0
    verdicts: int = 0
    differences: list[str] = field(default_factory=list)
    not_recomputed: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def objections(self) -> list[str]:
        """The reasons why it is not verified; none if it is."""
        told = [f"no trusted key has signed it: {self.unsigned}"] if self.signer is None else []
        if self.differences:
            told.append(f"{counted(len(self.differences), 'difference')} between records and logs")
        told += self.not_recomputed
        if not self.numbers:
            told.append("nothing was computed again: it has no run and no check that could be")
        return told

    @property
    def verified(self) -> bool:
        """Whether a trusted key signed it, and everything that was computed again is as its records say."""
        return not self.objections

    @property
    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"verified": self.verified, "objections": self.objections, **facts}

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        yield f"session        {self.session}: {self.result}"
        yield f"bytes          as they were written, {counted(self.files, 'file')}"
        yield f"signature      {'key ' + self.signer if self.signer else 'NOT TRUSTED: ' + self.unsigned}"
        done = ", ".join(
            [
                counted(self.runs, "run"),
                counted(self.checks, "check"),
                counted(self.numbers, "number"),
                counted(self.verdicts, "verdict"),
            ]
        )
        yield f"computed again {done}"
        for name, told in (
            ("difference", self.differences),
            ("taken from the record", self.taken),
            ("not in the bundle", self.left_out),
        ):
            yield from (f"{name}: {each}" for each in told)
        yield "VERIFIED" if self.verified else f"NOT VERIFIED: {'; '.join(self.objections)}"


def verify(path: Path, keys: Sequence["Ed25519PublicKey"], most: int = MOST_BYTES) -> Verification:
    """Verify a bundle.

    Args:
        path: its file.
        keys: the public keys that are trusted.
        most: the most bytes that its files may have together.

    Raises:
        BundleError: it is refused: it was altered, or is not a bundle.
        ConfigError: it does not hold a session.
        OSError: it cannot be read or unpacked.
    """
    with opened(path, keys, most) as bundle:
        session = read_session(bundle.folder)
        told = Verification(
            session=session.id,
            result=str(bundle.predicate.get("result")),
            files=len(bundle.manifest.files),
            signer=bundle.signer,
            unsigned=bundle.unsigned,
            left_out=[f"{each.path}: {each.why}" for each in bundle.manifest.left_out],
        )
        system = _system(session, told)
        again = _runs(session, bundle, system, told)
        _verdicts(session, again, told)
        for record in session.checks.values():
            told.differences += differences_of_check(record, session)
            _check(record, session, told)
        told.differences += _report(session)
        told.differences += differences_of_derived(session)
        told.differences += _left_out(bundle)
        told.differences += _statement(session, bundle)
        return told


def _system(session: RecordedSession, told: Verification) -> System:
    if session.system is not None:
        return session.system.system
    name = next((record.system for record in session.runs.values()), "")
    try:
        system = load_system(name, SYSTEMS.usable().values())
    except ConfigError:
        system = System(name="elsewhere", cluster="slurm")
    told.taken.append(f"system {name}: its facts are not in the bundle; those that are installed here were used")
    return system


def _runs(session: RecordedSession, bundle: OpenedBundle, system: System, told: Verification) -> dict[str, RunRecord]:
    planned = {run.key: run for run in session.plan.runs}
    found = {}
    for key, record in session.runs.items():
        folder = session.folder / layout.FOLDERS["run"] / key
        logs = bundle.manifest.replayed.get(key)
        if record.replayed is not None and logs is None:
            told.not_recomputed.append(f"run {key}: its logs are not in the bundle")
            continue
        try:
            again, seen = judged_again(record, folder, session.folder / logs if logs else None, system)
        except NotRecomputableError as error:
            kind = told.not_recomputed if record.metrics or record.problem is None else told.taken
            kind.append(f"run {key}: {error}")
            continue
        found[key] = again
        told.runs += 1
        told.numbers += numbers_of(again)
        told.differences += differences(record, again, seen, folder)
        if record.problem is not None and (seen is None or seen.kind != record.problem.kind):
            told.taken.append(f"run {key}: its problem, {record.problem.kind}: {record.problem.message}")
        plan = planned.get(key)
        if plan is None:
            told.differences.append(f"run {key}: it has a record, and the plan of the session does not have it")
        elif plan.recipe != record.recipe:
            told.differences.append(f"run {key}: the recipe in its record is not the one in the plan of the session")
    for key in planned.keys() - session.runs.keys():
        told.differences.append(f"run {key}: the plan of the session has it, and there is no record")
    return found


def _check(record: HealthRecord, session: RecordedSession, told: Verification) -> None:
    """Judge a check by the answers of its probes, where these are all that it needs."""
    try:
        report = judged_by_answers(record, session)
    except NotKeptError as error:
        told.taken.append(f"check {record.check}: what was found and measured: {error}")
    except LLMBenchError as error:
        told.differences.append(f"check {record.check}: its record has a report, and its answers come to: {error}")
    else:
        told.checks += 1
        told.numbers += count_numbers(report.model_dump(include={"readings"}))
        told.differences += differences_by_answers(record, report)


def _verdicts(session: RecordedSession, again: Mapping[str, RunRecord], told: Verification) -> None:
    """Reach the verdict of every test of a run again: by all the runs that it judged together."""
    of_test: dict[str, list[RunRecord]] = {}
    said: dict[str, Judgement] = {}
    for key, record in session.runs.items():
        for judgement in record.judgements:
            if said.setdefault(judgement.test, judgement) != judgement:
                told.differences.append(f"{judgement.test}: the records of its runs give it different verdicts")
            of_test.setdefault(judgement.test, [])
            if key in again:
                of_test[judgement.test].append(again[key])
    groups = {test.test for test in session.plan.tests}
    for test, judgement in said.items():
        runs = sorted(of_test[test], key=lambda run: run.repeat)
        if test not in groups:
            what = (
                "how it compares with earlier sessions"
                if test.startswith(_OF_HISTORY)
                else "how groups of nodes compare"
            )
            told.taken.append(f"{test}: {judgement.verdict}: {what}")
        elif runs:
            found = rejudged(judgement, runs, rerun=session.system is not None and session.system.rerun)
            told.differences += [found.difference] if found.difference else []
            told.taken += [found.taken] if found.taken else []
            told.verdicts += not (found.difference or found.taken)
        else:
            told.taken.append(f"{test}: {judgement.verdict}: its runs could not be judged again")


def _report(session: RecordedSession) -> Iterator[str]:
    """Yield how the JUnit report differs from the verdicts in the records: each test has to be in both, alike."""
    records = (*session.runs.values(), *session.checks.values())
    kept: dict[str, set[str]] = {}
    for record in records:
        for judgement in record.judgements:
            kept.setdefault(address_of(judgement.test), set()).add(str(judgement.verdict))
    cases = {case.address: case for case in session.cases}
    if len(cases) != len(session.cases):
        yield f"{layout.JUNIT}: a test is in it twice"
    for address, verdicts in kept.items():
        case = cases.get(address)
        if case is None:
            yield f"{layout.JUNIT}: {address} is not in it, and a record says {', '.join(sorted(verdicts))}"
        elif verdicts != {case.verdict}:
            yield f"{layout.JUNIT}: {address}: it says {case.verdict}, the records {', '.join(sorted(verdicts))}"
    for test in session.plan.tests:
        address = address_of(test.test)
        if address in cases and address not in kept and cases[address].verdict == "PASS":
            yield f"{layout.JUNIT}: {address}: it says PASS, and no record does"


def _left_out(bundle: OpenedBundle) -> Iterator[str]:
    """Yield the files that this bundle has, and that every bundle of ours leaves out."""
    for each in bundle.manifest.files:
        if each.path in MADE_AGAIN:
            yield f"{each.path}: {MADE_AGAIN[each.path]}; a bundle leaves it out, and this one has it"


def _statement(session: RecordedSession, bundle: OpenedBundle) -> Iterator[str]:
    predicate = make_predicate(session, {each.path: each for each in bundle.manifest.files})
    for name in predicate.keys() | bundle.predicate.keys():
        stated, found = bundle.predicate.get(name), predicate.get(name)
        if stated != found:
            yield f"the statement: {name}: it says {stated}, the session {found}"
    page = session.folder / CERTIFICATE
    # Another version may word it otherwise.
    if bundle.manifest.llmbench == __version__ and page.read_text(encoding="utf-8") != make_certificate(session):
        yield f"{CERTIFICATE}: it is not the one of these records"
