"""Two sessions side by side: what became faster or slower by more than both know, and what else changed."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_llmbench.core.errors import UnitError
from pytest_llmbench.core.quantity import for_people, listed
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.reporting.html.rows import VerdictRow, verdict_rows
from pytest_llmbench.session.folder import SessionFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class StatisticOfBoth:
    """One statistic of one run in both sessions.

    Attributes:
        run, statistic: names.
        earlier, now: the numbers, or why there is none.
        change: in percent of the earlier one; empty where it is not known.
        says: the conclusion, in words.
        kind: colour of that: `fail`, `pass`, `skip` or `missing`.
    """

    run: str
    statistic: str
    earlier: str
    now: str
    change: str
    says: str
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionComparison:
    """The comparison of a session with an earlier one.

    Attributes:
        earlier: the earlier session's id.
        numbers: of each run that either has.
        verdicts: tests whose verdicts differ, or that only one has: name, earlier verdict, verdict now.
        differences: facts of the runs that differ, such as versions: run, fact, earlier, now.
        damage: the parts of the earlier session that cannot be read.
    """

    earlier: str
    numbers: tuple[StatisticOfBoth, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    differences: tuple[tuple[str, str, str, str], ...]
    damage: tuple[str, ...]


def compare(now: SessionFolder, earlier: SessionFolder) -> SessionComparison:
    """Compare a session with an earlier one, run by run of the same name."""
    keys = dict.fromkeys([*now.runs, *earlier.runs])
    there, here = ({row.test: row for row in verdict_rows(each)} for each in (earlier, now))
    broken = (f"{about} {name}: {why}" for (about, name), why in earlier.broken.items())
    return SessionComparison(
        earlier=earlier.id,
        numbers=tuple(each for key in keys for each in _numbers(key, now.runs.get(key), earlier.runs.get(key))),
        verdicts=tuple(_changed(there, here)),
        differences=tuple(each for key in keys for each in _facts(key, now.runs.get(key), earlier.runs.get(key))),
        damage=(*earlier.damage, *broken),
    )


def _numbers(key: str, now: RunRecord | None, earlier: RunRecord | None) -> Iterator[StatisticOfBoth]:
    """Yield the statistic of record, and each that was judged by the steady part of both runs."""
    of_record = {each.recipe.statistic_of_record for each in (now, earlier) if each is not None}
    both = [name for name in (now.metrics if now else ()) if earlier is not None and name in earlier.metrics]
    timed = [name for name in both if now is not None and now.metrics[name].sense is not None]
    for name in dict.fromkeys([*sorted(of_record), *timed]):
        yield _number(key, name, _metric(now, name), _metric(earlier, name))


def _metric(run: RunRecord | None, name: str) -> Metric | str:
    """A number, or the reason why there is none."""
    if run is None:
        return "no such run"
    if run.problem is not None:
        return f"not judged ({run.problem.kind})"
    return run.metrics.get(name) or "not measured"


def _number(run: str, statistic: str, now: Metric | str, earlier: Metric | str) -> StatisticOfBoth:
    texts = [_text(each) for each in (earlier, now)]
    if isinstance(now, str) or isinstance(earlier, str):
        return StatisticOfBoth(
            run=run, statistic=statistic, earlier=texts[0], now=texts[1], change="", kind="missing",
            says="nothing to compare",
        )  # fmt: skip
    try:
        percent = now.quantity.difference_percent(earlier.quantity)
    except UnitError:
        percent = None
    change = f"{percent:+.2f} %" if percent is not None else ""
    says, kind = _says(now, earlier, percent)
    return StatisticOfBoth(
        run=run, statistic=statistic, earlier=texts[0], now=texts[1], change=change, says=says, kind=kind
    )


def _says(now: Metric, earlier: Metric, percent: float | None) -> tuple[str, str]:
    """Draw a conclusion from two numbers: intervals that overlap show no difference."""
    ends = [now.low, now.high, earlier.low, earlier.high]
    known = [end for end in ends if end is not None and math.isfinite(end)]
    if percent is None or len(known) < len(ends) or now.sense is None or now.unit != earlier.unit:
        return "no interval, so it is not known whether this is a difference", "skip"
    now_low, now_high, then_low, then_high = known
    if now_low <= then_high and then_low <= now_high:
        return "no difference beyond what both know", "skip"
    better = (now_low > then_high) == (now.sense == "rate")
    return ("faster than both intervals explain", "pass") if better else ("slower than both intervals explain", "fail")


def _text(metric: Metric | str) -> str:
    if isinstance(metric, str):
        return metric
    between = ""
    if metric.low is not None and metric.high is not None and math.isfinite(metric.high - metric.low):
        between = f" ({for_people(metric.low)} to {for_people(metric.high)})"
    return f"{for_people(metric.value)}{between} {metric.unit}"


def _changed(there: Mapping[str, VerdictRow], here: Mapping[str, VerdictRow]) -> Iterator[tuple[str, str, str]]:
    for test in dict.fromkeys([*here, *there]):
        words = [each[test].word if test in each else "not in it" for each in (there, here)]
        if words[0] != words[1]:
            yield test, words[0], words[1]


def _facts(key: str, now: RunRecord | None, earlier: RunRecord | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a run was made with that differs."""
    if now is None or earlier is None:
        return
    pairs = [(_made_with(earlier), _made_with(now))]
    for then, today in pairs:
        for name in dict.fromkeys([*today, *then]):
            if then.get(name) != today.get(name):
                yield key, name, then.get(name, "—"), today.get(name, "—")


def _made_with(run: RunRecord) -> dict[str, str]:
    return {
        "system": run.system, "device": run.device or "—", "nodes": str(run.nodes), "GPUs": str(run.gpus),
        "hosts": listed(run.hosts), "scale": run.recipe.scale, "steps": str(run.recipe.steps),
        "global batch": str(run.recipe.global_batch_size), **run.versions,
    }  # fmt: skip
