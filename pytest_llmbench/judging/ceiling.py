"""The ceiling of a training's rate: the highest rate of matrix products that its ranks showed together."""

from collections.abc import Sequence

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.series import RankInfo

# On a machine with nothing beside the run, two measurements differ by a few percent. Those that differ by more are not
# of one machine in one state.
_ALIKE = 1.5


def rates_together(ranks: Sequence[RankInfo]) -> tuple[float, ...]:
    """The rate of all ranks, FLOP/s, each time that all of them measured it; empty where a rank did not."""
    return tuple(map(sum, zip(*(info.matmul_rates for info in ranks), strict=False)))


def doubt(rates: Sequence[float]) -> float:
    """How many times higher the ceiling may be than the highest of these rates; 1 where it is known.

    A rate that was reached, or nearly so, a second time is the ceiling. If it was reached only once, something slowed
    the machine each other time by this factor or more, and may have slowed it that once as well.
    """
    best, *others = sorted(rates, reverse=True)
    factor = best / others[0] if others else 1.0
    return factor if factor > _ALIKE else 1.0


def describe_rates(ranks: Sequence[RankInfo]) -> str:
    """The rates that the ranks measured, and what to do, in words."""
    rates = ", ".join(for_people(rate / 1e9, 3) for rate in rates_together(ranks))
    return (
        f"the ranks measured matrix-product rates of {rates} GFLOP/s, because something else used the machine: stop "
        "the other programs on it, and run the test again"
    )
