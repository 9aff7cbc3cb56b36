"""Two sessions side by side: their numbers as `llmbench compare` judges them, and what else changed."""

from typing import NamedTuple

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.compare import change_texts, compare_sessions, run_of_record
from pytest_llmbench.reporting.html.rows import verdict_rows
from pytest_llmbench.session.folder import SessionFolder


class SessionComparison(NamedTuple):
    """The comparison of a session with an earlier one.

    Attributes:
        earlier: the earlier session's id.
        numbers: recipe, statistic, earlier, now, change, its interval, kind of the verdict, and reason of each number.
        verdicts: tests whose verdicts differ, or that only one has: name, earlier verdict, verdict now.
        differences: facts of the runs that differ, such as versions: run, fact, earlier, now.
        damage: unreadable parts of the earlier session.
    """

    earlier: str
    numbers: list[tuple[str, ...]]
    verdicts: list[tuple[str, str, str]]
    differences: list[tuple[str, str, str, str]]
    damage: list[str]


def compare(now: SessionFolder, earlier: SessionFolder) -> SessionComparison:
    """Compare a session with an earlier one: numbers by recipe, facts by run, verdicts by test."""
    old, new = ([run_of_record(record) for record in session.runs.values()] for session in (earlier, now))
    numbers: list[tuple[str, ...]] = []
    for line in compare_sessions(old, new):
        kind = line.verdict.lower() if line.verdict in {*Verdict} else "skip"
        numbers.append((line.name, line.metric or "—", *change_texts(line.change), kind, line.reason))
    then, today = ({row.test: row.word for row in verdict_rows(session)} for session in (earlier, now))
    words = ((test, then.get(test, "not in it"), today.get(test, "not in it")) for test in {**today, **then})
    differences = []
    for key in now.runs.keys() & earlier.runs.keys():
        before, after = _facts(earlier.runs[key]), _facts(now.runs[key])
        names = (name for name in {**after, **before} if before.get(name) != after.get(name))
        differences += [(key, name, before.get(name, "—"), after.get(name, "—")) for name in names]
    broken = (f"{about} {name}: {reason}" for (about, name), reason in earlier.broken.items())
    return SessionComparison(
        earlier=earlier.id,
        numbers=numbers,
        verdicts=[(test, before, after) for test, before, after in words if before != after],
        differences=sorted(differences),
        damage=[*earlier.damage, *broken],
    )


def _facts(run: RunRecord) -> dict[str, str]:
    return {
        "system": run.system, "device": run.device or "—", "nodes": str(run.nodes), "GPUs": str(run.gpus),
        "hosts": listed(run.hosts), "scale": run.recipe.scale, "steps": str(run.recipe.steps),
        "global batch": str(run.recipe.global_batch_size), **run.versions,
    }  # fmt: skip
