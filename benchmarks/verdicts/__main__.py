"""How true verdicts are: `python -m benchmarks.verdicts --runs 2000 --seed 1 > table.md`.

Simulates runs whose steady speed is known and judges them by bounds on either side of it.
"""

import argparse
import itertools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy import stats

from benchmarks.verdicts.campaign import DISTANCES, EARLY, OURS, Cell, Judged, simulate
from benchmarks.verdicts.scenarios import SCENARIOS, Noise

NOISES = tuple(Noise(cv=cv, phi=phi) for cv in (0.0005, 0.005, 0.02, 0.06) for phi in (0.0, 0.5, 0.9))
# Steps of a run, and of a line that is a mean over several.
STEPS = (25, 100, 200, 1000, 5000)
LINES = ((100, 10), (200, 20), (1000, 20), (200, 5))
PLAN = 200


def main(words: Sequence[str]) -> int:
    """Simulate, print the tables; 1 where a cell within the domain is wrong more often than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="of a cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, nargs="*", default=[*STEPS])
    parser.add_argument("--scenarios", nargs="*", help="words of their names; all without it")
    parser.add_argument("--no-lines", action="store_true", help="leave out lines that are means over several steps")
    parser.add_argument("--no-early", action="store_true", help="leave out early looks")
    given = parser.parse_args(words)
    chosen = [
        i for i, each in enumerate(SCENARIOS)
        if not given.scenarios or any(word in each.name for word in given.scenarios)
    ]  # fmt: skip
    kinds = [(steps, 1, False) for steps in given.steps]
    kinds += [] if given.no_lines else [(steps, line, False) for steps, line in LINES]
    kinds += [] if given.no_early else [(PLAN, 1, True)]
    cells = [
        Cell(scenario=i, steps=steps, noise=kind, line=line, early=early, runs=given.runs, seed=given.seed)
        for (steps, line, early), i, kind in itertools.product(kinds, chosen, NOISES)
        if not (early and SCENARIOS[i].system)
    ]  # fmt: skip
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        judged = list(pool.map(simulate, sorted(cells, key=lambda cell: -cell.steps), chunksize=4))
    print("\n".join([*by_scenario(judged)]))
    print(f"{time.monotonic() - began:.0f} s")
    return 0


def by_scenario(judged: Sequence[Judged]) -> Iterator[str]:
    by = defaultdict(list)
    for each in judged:
        by[each.cell.of.name, each.cell.early, each.cell.line, each.cell.steps].append(each)
    for (name, early, line, steps), mine in sorted(
        by.items(), key=lambda p: ([s.name for s in SCENARIOS].index(p[0][0]), p[0][1:])
    ):
        rule = EARLY if early else OURS
        worst = max(mine, key=lambda e: e.wrong[rule].max())
        n = worst.cell.runs
        rate = worst.wrong[rule].max() / n
        bad = [e for e in mine if (e.wrong[rule].max() / n) > 0.01]
        mean = np.mean([e.wrong[rule].mean() / n for e in mine])
        low = [e for e in mine if e.cell.noise.cv <= 0.005]
        high = [e for e in mine if e.cell.noise.cv > 0.005]
        op = " ".join(f"{100 * np.mean([(e.open[3 - i] + e.open[4 + i]) / 2 / n for e in low]):3.0f}" for i in range(4))
        oph = " ".join(
            f"{100 * np.mean([(e.open[3 - i] + e.open[4 + i]) / 2 / n for e in high]):3.0f}" for i in range(4)
        )
        flag = "" if rate <= 0.01 else ("**" if worst.cell.within_domain else "(outside)")
        took = "" if not early else f" median {np.median([e.steps[[1, 6]].max() for e in low]):.0f}"
        print(
            f"{name:24s}{'E' if early else ' '} n={steps:4d}/{line:2d} worst {100 * rate:5.2f}% cv {worst.cell.noise.cv:6} phi {worst.cell.noise.phi} d {DISTANCES[worst.wrong[rule].argmax()]:6} bad {len(bad):2d} mean {100 * mean:.3f}  open {op} | {oph}{took} {flag}"
        )
    return iter(())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
