"""Two sessions side by side: their numbers as `llmbench compare` judges them, and what else changed."""

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_llmbench.core.quantity import for_people, listed
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.history.compare import Compared, compare_sessions, run_of_record
from pytest_llmbench.reporting.html.rows import verdict_rows
from pytest_llmbench.session.folder import SessionFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionComparison:
    """The comparison of a session with an earlier one.

    Attributes:
        earlier: the earlier session's id.
        numbers: texts of each number: recipe, statistic, earlier, now, change, kind of the verdict, and reason.
        verdicts: tests whose verdicts differ, or that only one has: name, earlier verdict, verdict now.
        differences: facts of the runs that differ, such as versions: run, fact, earlier, now.
        damage: unreadable parts of the earlier session.
    """

    earlier: str
    numbers: tuple[tuple[str, ...], ...]
    verdicts: tuple[tuple[str, str, str], ...]
    differences: tuple[tuple[str, str, str, str], ...]
    damage: tuple[str, ...]


def compare(now: SessionFolder, earlier: SessionFolder) -> SessionComparison:
    """Compare a session with an earlier one: numbers by recipe, facts by run, verdicts by test."""
    old, new = ([run_of_record(record) for record in session.runs.values()] for session in (earlier, now))
    then, today = ({row.test: row.word for row in verdict_rows(session)} for session in (earlier, now))
    words = {test: (then.get(test, "not in it"), today.get(test, "not in it")) for test in {**today, **then}}
    broken = (f"{about} {name}: {reason}" for (about, name), reason in earlier.broken.items())
    return SessionComparison(
        earlier=earlier.id,
        numbers=tuple(map(_texts, compare_sessions(old, new))),
        verdicts=tuple((test, *pair) for test, pair in words.items() if pair[0] != pair[1]),
        differences=tuple(
            (key, *fact) for key, run in now.runs.items() if key in earlier.runs
            for fact in _differences(earlier.runs[key], run)
        ),
        damage=(*earlier.damage, *broken),
    )  # fmt: skip


def _texts(line: Compared) -> tuple[str, ...]:
    kind = line.verdict.lower() if line.verdict in {*Verdict} else "skip"
    before = after = percent = "—"
    if line.change is not None:
        before, after = (f"{for_people(mean)} {line.change.unit}" for mean in (line.change.before, line.change.after))
        percent = f"{100 * line.change.share:+.2f} %"
        if line.change.low is not None and line.change.high is not None:
            percent += f" ({100 * line.change.low:+.2f} to {100 * line.change.high:+.2f} %)"
    return line.name, line.metric or "—", before, after, percent, kind, line.reason


def _differences(then: RunRecord, now: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Yield name, earlier and present text of each fact of a run that differs."""
    old, new = _facts(then), _facts(now)
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            yield name, old.get(name, "—"), new.get(name, "—")


def _facts(run: RunRecord) -> dict[str, str]:
    return {
        "system": run.system, "device": run.device or "—", "nodes": str(run.nodes), "GPUs": str(run.gpus),
        "hosts": listed(run.hosts), "scale": run.recipe.scale, "steps": str(run.recipe.steps),
        "global batch": str(run.recipe.global_batch_size), **run.versions,
    }  # fmt: skip
