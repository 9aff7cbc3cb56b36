"""How true verdicts are: `python -m benchmarks.verdicts --runs 2000 --seed 1`.

Simulates runs whose steady speed is known and judges them by bounds on either side of it, 0.5 to 5 % away, by our rule
and by rules that compare one number. Prints tables in Markdown: for each kind of runs the share of wrong verdicts in
the worst cell (a noise, a correlation, a bound) and the mean of its cells, in %. Exits with 1 if a cell within the
domain is wrong more often than in 1 %, by more than chance. 100 runs a cell take some 200 seconds of one core.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.verdicts import calibrating, tables
from benchmarks.verdicts.campaign import Cell, Judged, Way, read, simulate, written
from benchmarks.verdicts.scenarios import SCENARIOS, Noise

NOISES = tuple(Noise(cv=cv, phi=phi) for cv in (0.0005, 0.005, 0.02, 0.06) for phi in (0.0, 0.5, 0.9))
# Long runs take long to simulate.
NOISES_OF_LONG = tuple(Noise(cv=cv, phi=phi) for cv in (0.0005, 0.005, 0.06) for phi in (0.0, 0.9))
LONG = 1000
PLAN = 200
WAYS = (
    *(Way(steps=steps) for steps in (25, 100, PLAN, 1000, 5000)),
    Way(steps=100, line=10), Way(steps=200, line=5), Way(steps=200, line=20), Way(steps=1000, line=20),
    Way(steps=PLAN, early=True), Way(steps=PLAN, repeats=3),
    Way(steps=PLAN, repeats=8, rerun=True),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Simulate and print the tables; 1 where a cell within the domain is wrong more often than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="of a cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="scenarios whose name contains it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further cell after so long")
    parser.add_argument(
        "--output", type=Path, help="a JSON line for each cell, as it ends; cells in it are not repeated"
    )
    given = parser.parse_args(words)
    began = time.monotonic()
    cells = [
        Cell(scenario=i, way=way, noise=noise, runs=given.runs, seed=given.seed)
        for way, (i, scenario) in itertools.product(WAYS, enumerate(SCENARIOS))
        if asked(way, system=scenario.system) and any(text in scenario.name for text in given.only or [""])
        for noise in (NOISES_OF_LONG if way.steps >= LONG else NOISES)
    ]
    lines = given.output.read_text("utf-8").splitlines() if given.output and given.output.exists() else []
    done = {each.cell: each for each in map(read, lines)}
    for each in simulated([cell for cell in cells if cell not in done], given.jobs, began + given.seconds):
        done[each.cell] = each
        if given.output:
            with given.output.open("a", encoding="utf-8") as file:
                file.write(written(each) + "\n")
    judged = [done[cell] for cell in cells if cell in done]
    if len(judged) < len(cells):
        print(f"{len(judged)} of {len(cells)} cells were simulated in {given.seconds:g} s.\n")
    tallies = [
        (" (one 3 % slower)" * slow, calibrating.tally_of(runs, between, given.runs, given.seed, one_slow=slow))
        for slow in (False, True)
        for runs, between in itertools.product(calibrating.RUNS, calibrating.BETWEEN)
    ]
    parts = (
        tables.summary(judged), tables.by_rule(judged, PLAN), tables.by_scenario(judged), tables.left_open(judged),
        tables.early_steps(judged), tables.calibration(tallies),
    )  # fmt: skip
    print("\n\n".join("\n".join(part) for part in parts))
    print(f"\n{given.runs} runs a cell, seed {given.seed}: {time.monotonic() - began:.0f} s on {given.jobs} processes.")
    return int(any(each.cell.within_domain and tables.too_often(each) for each in judged))


def simulated(cells: Sequence[Cell], jobs: int, until: float) -> Iterator[Judged]:
    """Simulate cells in so many processes, the longest first, until a time of the monotonic clock."""
    ordered = sorted(cells, key=lambda cell: -cell.way.steps * cell.way.repeats * (1 + 25 * cell.way.early))
    if jobs == 1:
        yield from map(simulate, itertools.takewhile(lambda _: time.monotonic() < until, ordered))
    elif ordered:
        with get_context("spawn").Pool(jobs) as pool:
            for each in pool.imap_unordered(simulate, ordered):
                yield each
                if time.monotonic() > until:
                    return


def asked(way: Way, *, system: bool) -> bool:
    """Whether such runs are judged in this way: several together where runs differ, early looks at single ones."""
    return system if way.repeats > 1 else not (system and way.early)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
