"""Runs compared with earlier ones of the history: each gets a verdict on whether it became slower."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.history.trend.wanted import Wanted
from pytest_llmbench.judging.interval.decide import RULE
from pytest_llmbench.plugin.verdict.outcome import facts_of_run

if TYPE_CHECKING:
    from pytest_llmbench.history.trend.baselines import Compared


def compare_with_history(
    place: Path | str, session: str, runs: Iterable[RunSpec], records: Mapping[str, RunRecord], wanted: Wanted
) -> Iterator[dict[str, Any]]:
    """Yield the properties of a verdict on each run, or on the runs that are judged together; the test under `test`.

    Args:
        place: the history, a file or a URL.
        session: id of this session.
        runs: all of the session.
        records: those there are, by key.
        wanted: the baseline.

    Raises:
        ConfigError: the history cannot be read.
    """
    from pytest_llmbench.history.store.database import open_history  # noqa: PLC0415  # SQLAlchemy is heavy
    from pytest_llmbench.history.trend.baselines import compare_with_baseline  # noqa: PLC0415

    series: dict[str, list[RunRecord]] = {}
    for run in runs:
        if (record := records.get(run.key)) is not None:
            series.setdefault(run.series, []).append(record)
    if not series:
        return
    with open_history(place) as history:
        told = compare_with_baseline(history, session, [*series.values()], wanted)
    for compared, of_one in zip(told, series.values(), strict=True):
        yield _row(compared, of_one, wanted)


def _row(compared: "Compared", records: list[RunRecord], wanted: Wanted) -> dict[str, Any]:
    row: dict[str, Any] = {
        "test": f"history::{compared.key}", **facts_of_run(records[0], len(records)), "findings": "",
        "statistic": compared.metric or "", "verdict": str(compared.verdict),
    }  # fmt: skip
    if compared.reason:
        row["reason"] = compared.reason
    change = compared.change
    if change is None:
        return row | {"threshold": f"no worse than {wanted}"}
    row |= {
        "threshold": f"no worse than {Quantity(change.before, change.unit).plain}",
        "value": change.after, "unit": change.unit, "claim": "system", "alpha": change.alpha,
        #: property baseline: sessions of the earlier runs that the run was compared with, separated by commas
        "baseline": ",".join(compared.sessions),
        #: property change: difference from the mean of the baseline, %
        "change": 100 * change.share,
    }  # fmt: skip
    if change.low is None or change.high is None:
        return row
    return row | {
        "judged_by": "interval",
        "interval_rule": RULE,
        "change_low": 100 * change.low,  #: property change_low: lower end of the interval of `change`, %
        "change_high": 100 * change.high,  #: property change_high: upper end of the interval of `change`, %
    }
