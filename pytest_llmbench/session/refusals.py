"""Records of a session that are refused: of another recipe than today's, or contradicted by themselves or a file.

`llmbench report`, `compare` and `history import` leave these out.
"""

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


def without_refused(session: SessionFolder, law: Law) -> SessionFolder:
    """A session's folder without the refused records, of another recipe or with a contradiction: they are broken."""
    agreement = Agreement(session.path)
    checks = (partial(_wrong_work, law), agreement.objections, partial(differences_of_logs, agreement))
    refused: dict[tuple[str, str], str] = {}
    for record in chain[Record](session.runs.values(), session.checks.values()):
        if reasons := next(filter(None, (check(record) for check in checks)), None):
            more = f" ({len(reasons)} contradictions)" if len(reasons) > 1 else ""
            refused[record.about, record.name] = f"{reasons[0]}{more}"
    runs, checked = session.runs, session.checks
    if refused:
        runs = {key: record for key, record in runs.items() if ("run", key) not in refused}
        checked = {name: record for name, record in checked.items() if ("check", name) not in refused}
    return replace(
        session, runs=runs, checks=checked, broken={**session.broken, **refused}, refused=refused,
        notes=tuple(law.notes(runs.values())),
    )  # fmt: skip


def _wrong_work(law: Law, record: Record) -> list[str]:
    wrong = law.wrong_work(record.recipe, record.topology) if isinstance(record, RunRecord) else ""
    return [f"wrong_work: {wrong}"] if wrong else []


def refusals(session: SessionFolder) -> list[str]:
    """A line for each record that is there, and is damaged or refused."""
    paths = {subject: str(session.places[subject] / layout.RECORD) for subject in session.broken}
    there = [(path, session.broken[subject]) for subject, path in paths.items() if Path(path).exists()]
    return [f"{path}: {reason.removeprefix(f'{path}: ')}" for path, reason in there]
