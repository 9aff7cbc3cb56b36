"""How well change points of simulated series are found, by us and by Apache Otava in the same series.

    python -m benchmarks.history.change_points --series 500 --seed 1 [--otava PYTHON]

A series has 60, 120 or 250 values, 0 to 3 changes of 1, 2, 3 or 5 %, at least 8 values apart, and noise of 0.3, 0.5 or
1 %: normal, with one outlier in 20, or with a correlation of neighbours of 0.4. A point within the tolerance of a
planted one is found; any other is a false alarm. PYTHON is an interpreter that has Apache Otava.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Sequence

from pytest_llmbench.history.change_points import change_points

_OTAVA = """
import json, sys
from otava.analysis import compute_change_points
series, p = json.load(sys.stdin)
print(json.dumps([[int(c.index) for c in compute_change_points(s, window_len=50, max_pvalue=p)[0]] for s in series]))
"""


def simulate(seed: str) -> tuple[list[float], list[int]]:
    """The values of a series, and where it was changed."""
    rng = random.Random(seed)
    length, wanted = rng.choice((60, 120, 250)), rng.choice((0, 1, 1, 2, 3))
    places: list[int] = []
    for place in sorted(rng.sample(range(8, length - 4), wanted)):
        if not places or place - places[-1] >= 8:
            places.append(place)
    kind, spread = rng.choice(("normal", "normal", "outliers", "correlated")), rng.choice((0.003, 0.005, 0.01))
    level, noise, values = 100.0, 0.0, []
    for number in range(length):
        if number in places:
            level *= 1 + rng.choice((-1, 1)) * rng.choice((0.01, 0.02, 0.03, 0.05))
        if kind == "correlated":
            noise = 0.4 * noise + rng.gauss(0, 1) * (1 - 0.4**2) ** 0.5
        else:
            noise = rng.gauss(0, 4.0 if kind == "outliers" and rng.random() < 0.05 else 1.0)
        values.append(level * (1 + spread * noise))
    return values, places


def score(planted: Sequence[Sequence[int]], found: Sequence[Sequence[int]], tolerance: int) -> tuple[int, int, int]:
    """How many were found, falsely found, and missed."""
    right = false = missed = 0
    for places, points in zip(planted, found, strict=True):
        left = [*places]
        for point in points:
            near = [place for place in left if abs(place - point) <= tolerance]
            if near:
                left.remove(min(near, key=lambda place: abs(place - point)))
                right += 1
            else:
                false += 1
        missed += len(left)
    return right, false, missed


def points_of_otava(python: str, series: Sequence[Sequence[float]], p_value: float) -> list[list[int]]:
    """The change points that Apache Otava finds in each series, by an interpreter that has it."""
    told = subprocess.run(
        [python, "-c", _OTAVA], input=json.dumps([series, p_value]), capture_output=True, text=True, check=True
    )
    found: list[list[int]] = json.loads(told.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many each finds, for several highest p."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--otava", metavar="PYTHON", help="an interpreter that has Apache Otava")
    asked = parser.parse_args(arguments)
    every = [simulate(f"{asked.seed}/{number}") for number in range(asked.series)]
    series, planted = [values for values, _ in every], [places for _, places in every]
    print(f"{asked.series} series, {sum(map(len, planted))} changes")
    for p_value in (1e-2, 1e-3, 1e-4, 1e-5):
        found = {"llmbench": [[each.index for each in change_points(one, p_value=p_value)] for one in series]}
        if asked.otava:
            found["otava"] = points_of_otava(asked.otava, series, p_value)
        for name, points in found.items():
            for tolerance in (0, 2):
                right, false, missed = score(planted, points, tolerance)
                f1 = 2 * right / (2 * right + false + missed)
                print(f"p {p_value:g}, tolerance {tolerance}, {name:9}: F1 {f1:.3f}, found {right}, false {false}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
