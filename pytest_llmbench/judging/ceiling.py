"""The ceiling of a training's rate: the highest rate of matrix products that its ranks showed together."""

from collections.abc import Sequence

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.series import RankInfo

# On an otherwise idle machine two measurements differ by a few percent. A factor above this one means that another
# program slowed one of them.
_ALIKE = 1.5


def rates_together(ranks: Sequence[RankInfo]) -> tuple[float, ...]:
    """Sum of the ranks' rates, FLOP/s, for each measurement that all of them made; empty if a rank made none."""
    return tuple(map(sum, zip(*(info.matmul_rates for info in ranks), strict=False)))


def doubt(rates: Sequence[float]) -> float:
    """Factor by which the ceiling may be higher than the highest of these rates; 1 if the ceiling is certain.

    A rate that was reached twice, or nearly, is the ceiling. A rate that was reached once may itself be too low, as the
    program that slowed all other measurements by this factor or more may have slowed the highest one as well.
    """
    best, *others = sorted(rates, reverse=True)
    factor = best / others[0] if others else 1.0
    return factor if factor > _ALIKE else 1.0


def describe_rates(ranks: Sequence[RankInfo]) -> str:
    """The rates that the ranks measured, and what to do, as words for a message."""
    rates = ", ".join(for_people(rate / 1e9, 3) for rate in rates_together(ranks))
    return (
        f"the ranks measured matrix-product rates of {rates} GFLOP/s, because something else used the machine: stop "
        "the other programs on it, and run the test again"
    )
