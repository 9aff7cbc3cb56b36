"""How often golden losses refuse another good run: `python -m benchmarks.verdicts.golden`, in %, by number of repeats.

Losses of repeats differ by noise, by a random walk, or by last bits, a difference that grows with each step.
"""

import random
import statistics
import sys
from itertools import accumulate

from pytest_llmbench.judging.golden import find_tolerances, worst_in_a_row

STEPS = 50
# Factor by which a difference grows from step to step.
KINDS = {"noise": 0.0, "random walk": 1.0, "growing from last bits": 1.15}


def refused(repeats: list[list[float]], losses: list[float]) -> bool:
    """Whether a run is unlike these repeats."""
    columns = [*zip(*repeats, strict=True)]
    allowed, lasting = find_tolerances(columns)
    away = [(x - statistics.fmean(c)) / most for x, c, most in zip(losses, columns, allowed, strict=True)]
    return max(map(abs, away)) > 1 or worst_in_a_row(away)[0] > lasting


def share_refused(growth: float, count: int, runs: int) -> float:
    """Share of so many good runs that are refused by as many sets of repeats."""
    rng = random.Random(count)
    curves = [
        [*accumulate((rng.gauss(0, 1) for _ in range(STEPS)), lambda away, bit: growth * away + bit)]
        for _ in range(runs * (count + 1))
    ]
    return sum(refused(curves[i : i + count], curves[i + count]) for i in range(0, len(curves), count + 1)) / runs


if __name__ == "__main__":
    print(f"| Repeats | {' | '.join(KINDS)} |\n|{'---|' * (len(KINDS) + 1)}")
    for repeats in (3, 4, 5, 8):
        shares = (share_refused(growth, repeats, int(*sys.argv[1:] or ["2000"])) for growth in KINDS.values())
        print(f"| {repeats} | {' | '.join(f'{100 * share:.2f}' for share in shares)} |", flush=True)
