"""How often a healthy session is called slower, if recipes scatter alike and if they do not.

    python -m benchmarks.history.scatter --sessions 4000 --seed 1

Each session has a run of 20 recipes that did not change, after so many earlier ones of each. It is compared with all
of these, by what the series share and without that. Printed: the share of sessions in which any recipe is called
slower, the share in which the recipe that scatters most is, and the mean width of the intervals.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from statistics import fmean

from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS
from pytest_llmbench.history.compare import ALPHA_OF_SESSION, Change, measure_change
from pytest_llmbench.history.rows import MetricRow
from pytest_llmbench.history.scatter import scatter_of_runs, shared_scatter

_RECIPES = 20
# Standard deviations of the runs of each recipe, as shares.
CASES = {
    "all alike, 0.25 %": _RECIPES * [0.0025],
    "one twice as much": [*(_RECIPES - 1) * [0.0025], 0.005],
    "one three times as much": [*(_RECIPES - 1) * [0.0025], 0.0075],
    "one six times as much": [*(_RECIPES - 1) * [0.0025], 0.015],
    "half of them twice as much": [*_RECIPES // 2 * [0.0025], *_RECIPES // 2 * [0.005]],
    "from 0.1 to 1 %": [0.001 * 10 ** (number / (_RECIPES - 1)) for number in range(_RECIPES)],
}


def _row(value: float) -> MetricRow:
    return MetricRow(name="x", value=value, unit="words/s", low=0.999 * value, high=1.001 * value, better="higher")


def session(rng: random.Random, deviations: Sequence[float], earlier: int, *, share: bool) -> list[Change]:
    """The comparison of each recipe of one session."""
    pasts = [[1 + rng.gauss(0, each) for _ in range(earlier)] for each in deviations]
    new = [1 + rng.gauss(0, each) for each in deviations]
    scatters = [scatter_of_runs(past, past, [value]) for past, value in zip(pasts, new, strict=True)]
    shared = shared_scatter(scatters) if share else None
    alpha = ALPHA_OF_SESSION / len(deviations)
    return [
        measure_change(
            [*map(_row, past)], [_row(value)], past=past, usual=USUAL_BETWEEN_RUNS, shared=shared, alpha=alpha
        )
        for past, value in zip(pasts, new, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each case, with and without what the series share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--earlier", type=int, default=20)
    asked = parser.parse_args(arguments)
    print(f"{asked.sessions} sessions, {asked.earlier} earlier runs, seed {asked.seed}")
    for name, deviations in CASES.items():
        for share in (False, True):
            rng = random.Random(asked.seed)
            told = [session(rng, deviations, asked.earlier, share=share) for _ in range(asked.sessions)]
            accused = fmean(any(each.regressed for each in of_one) for of_one in told)
            noisiest = fmean(of_one[-1].regressed is True for of_one in told)
            width = fmean(each.high - each.share for of_one in told for each in of_one if each.high is not None)
            word = "shared" if share else "alone"
            print(f"{name:27} {word:6}  any {accused:.2%}  noisiest {noisiest:.2%}  half width {width:.2%}", flush=True)


if __name__ == "__main__":
    main()
