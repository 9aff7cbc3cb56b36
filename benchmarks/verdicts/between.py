"""How true verdicts are between the points of the table: `python -m benchmarks.verdicts.between --points 60`.

Draws kinds of runs of the stated domain at random, with their sizes, the noise, the number of steps and the way to
judge. Prints a line for each; exits with 1 if any is wrong more often than in 1 %, by more than chance.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from benchmarks.verdicts.campaign import DISTANCES, OURS, Cell, Way, simulate
from benchmarks.verdicts.scenarios import Noise, Scenario, drawn
from benchmarks.verdicts.tables import too_often


@dataclass(frozen=True, kw_only=True, slots=True)
class Point(Cell):
    """Runs of a scenario that is not in the table; `scenario` is the number of the point."""

    kind: Scenario

    @property
    def of(self) -> Scenario:
        """How its runs behave."""
        return self.kind


def point(seed: int, number: int, runs: int) -> Point:
    """The point of a number, always the same one for a seed."""
    rng = np.random.default_rng([seed, number])
    steps, line = round(25 * 24 ** rng.random()), 1  # 25 to 600
    how = rng.choice(["whole", "whole", "early", "lines"])
    if how == "lines":
        line = int(rng.integers(5, 21))
        steps = line * int(rng.integers(10, 61))
    noise = Noise(cv=0.0005 * 120 ** rng.random(), phi=round(0.9 * rng.random(), 2))  # 0.05 to 6 %
    way = Way(steps=steps, line=line, early=how == "early")
    return Point(kind=drawn(rng, steps), scenario=number, way=way, noise=noise, runs=runs, seed=seed)


def line_of(given: tuple[int, int, int]) -> tuple[str, bool]:
    """Describe the verdicts of a point's runs in one line, and return whether too many are wrong."""
    judged = simulate(point(*given))
    cell, worst = judged.cell, int(judged.wrong[OURS].argmax())
    wrong, left_open = (
        judged.wrong[OURS][worst] / cell.runs,
        "/".join(f"{each:.0%}" for each in judged.open / cell.runs),
    )
    text = (
        f"{given[1]} {cell.of.name}, {cell.way} steps, CV {cell.noise.cv:.2%}, φ {cell.noise.phi}: "
        f"{wrong:.2%} wrong at {DISTANCES[worst]:+.1%}, open {left_open}"
    )
    return text, too_often(judged)


def main(words: Sequence[str]) -> int:
    """Simulate and print the points; 1 if one is wrong more often than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts.between", description=__doc__)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--runs", type=int, default=1500, help="of a point")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args(words)
    points = zip(itertools.repeat(given.seed), range(given.points), itertools.repeat(given.runs))
    bad = 0
    with get_context("spawn").Pool(given.jobs) as pool:
        for text, too_many in pool.imap(line_of, points):
            bad += too_many
            print(text, "TOO OFTEN" if too_many else "", flush=True)
    print(
        f"{given.points} points of {given.runs} runs, seed {given.seed}: {bad} wrong in more than 1 %, beyond chance."
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
