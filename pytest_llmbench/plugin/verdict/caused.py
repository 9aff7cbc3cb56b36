"""From a missed threshold to the cause of the missed speed: which run to look at, and how fast it should have been."""

from collections.abc import Sequence

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.cause.evidence import Cause
from pytest_llmbench.judging.cause.find import find_cause
from pytest_llmbench.judging.interval.decide import Op


def cause_of(
    statistic: str, runs: Sequence[tuple[Metric, RunRecord]], op: Op, bound: Quantity, *, decided: bool
) -> Cause | None:
    """Name the cause, by the slowest of the runs; None where no speed was missed, and where nothing stands out.

    Args:
        statistic: the statistic that was compared.
        runs: its number in each run that was judged, with the run.
        op: the comparison.
        bound: the threshold.
        decided: whether it surely misses it.
    """
    _, first = runs[0]
    time = bound.dimension == "time"
    if not statistics_of(get_engine(first.recipe.engine))[statistic].of_speed or (op in {"<=", "<"}) != time:
        return None
    metric, record = (max if time else min)(runs, key=lambda run: run[0].quantity.base)
    limit, needed = bound.to(metric.unit).value, 0.0
    if record.steady is not None and limit > 0.0 and metric.value > 0.0:
        took = record.steady.mean_with_pauses
        if metric.sense is not None and metric.amount is not None:
            took = metric.amount / metric.value if metric.sense == "rate" else metric.value / metric.amount
        needed = took * (limit / metric.value if time else metric.value / limit)
    return find_cause(record, needed, by_interval=metric.sense is not None, decided=decided)
