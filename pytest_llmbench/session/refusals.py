"""Records of a session that are refused: of another recipe than today's, or contradicted by themselves or a file.

`llmbench report`, `compare` and `history import` leave these out.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from pytest_llmbench.core.record.records import Record, RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.agreement import Agreement
from pytest_llmbench.session.folder import SessionFolder
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.replay import differences_of_logs


def refused_records(folder: Path, records: Iterable[Record], law: Law) -> dict[tuple[str, str], str]:
    """The reason for each refused record, by `run` or `check` and its name: another recipe, or a contradiction."""
    agreement = Agreement(folder)
    checks = (partial(_wrong_work, law), agreement.objections, partial(differences_of_logs, agreement))
    refused: dict[tuple[str, str], str] = {}
    for record in records:
        if reasons := next(filter(None, (check(record) for check in checks)), None):
            more = f" ({len(reasons)} contradictions)" if len(reasons) > 1 else ""
            refused[record.about, record.name] = f"{reasons[0]}{more}"
    return refused


def _wrong_work(law: Law, record: Record) -> list[str]:
    wrong = law.wrong_work(record.recipe, record.topology) if isinstance(record, RunRecord) else ""
    return [f"wrong_work: {wrong}"] if wrong else []


def without_refused(session: SessionFolder, law: Law) -> SessionFolder:
    """A session's folder without the records that are refused, which count as broken."""
    refused = refused_records(session.path, chain(session.runs.values(), session.checks.values()), law)
    runs, checks = session.runs, session.checks
    if refused:
        runs = {key: record for key, record in runs.items() if ("run", key) not in refused}
        checks = {name: record for name, record in checks.items() if ("check", name) not in refused}
    return replace(
        session, runs=runs, checks=checks, broken={**session.broken, **refused}, refused=refused,
        notes=tuple(law.notes(runs.values())),
    )  # fmt: skip


def refusals(session: SessionFolder) -> list[str]:
    """A line for each record that is there, and is damaged or refused."""
    paths = {subject: str(session.places[subject] / layout.RECORD) for subject in session.broken}
    there = [(path, session.broken[subject]) for subject, path in paths.items() if Path(path).exists()]
    return [f"{path}: {reason.removeprefix(f'{path}: ')}" for path, reason in there]
