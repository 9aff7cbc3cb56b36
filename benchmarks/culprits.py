"""How well slow nodes are found, on clusters that are simulated; prints Markdown tables.

    .venv/bin/python -m benchmarks.culprits [trials]

Every trial draws which nodes are bad; seeds are fixed, so that the tables come out the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from tests.support.slow_nodes import TOLERANCE, SlowNodes

NODES = (8, 64, 256, 1024)
BAD = (0, 1, 2, 5)
NOISE = {"none": (0.0, 0.0), "3 %, flukes 0.1 %": (0.03, 0.001), "3 %, flukes 1 %": (0.03, 0.01)}


def main() -> None:
    """Print both tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    print(f"Means of {trials} trials; a bad node has 70 % of the speed; tolerance {TOLERANCE:.0%}.\n")
    print("Tournament and second pass, by comparison alone (in brackets: against a reference)\n")
    print("| nodes | bad | noise | found | falsely accused | unresolved | false links | rounds | pair runs |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for nodes, bad, noise in cases():
        print(f"| {nodes} | {bad} | {noise} | {tournament(nodes, bad, noise, trials)} |")
    print("\nBisection of the whole group, against a reference\n")
    print("| nodes | bad | noise | found | falsely accused | not named | rounds | group runs |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|")
    for nodes, bad, noise in cases():
        if bad:
            print(f"| {nodes} | {bad} | {noise} | {bisection(nodes, bad, noise, trials)} |")


def cases() -> list[tuple[int, int, str]]:
    """Nodes, bad ones among them, and noise."""
    return [(nodes, bad, noise) for nodes in NODES for bad in BAD for noise in NOISE]


def cluster(nodes: int, bad: int, noise: str, seed: int) -> SlowNodes:
    """One trial."""
    sigma, fluke = NOISE[noise]
    return SlowNodes(nodes=nodes, bad=bad, seed=seed, sigma=sigma, fluke=fluke)


def tournament(nodes: int, bad: int, noise: str, trials: int) -> str:
    """One line of the first table."""
    columns: list[list[str]] = []
    for floor in (None, 1 - TOLERANCE):
        told = []
        for seed in range(trials):
            here = cluster(nodes, bad, noise, seed)
            verdict = here.hunt(floor)
            named = set(verdict.culprits)
            told.append(
                (
                    len(named & here.culprits), len(named - here.culprits), len(verdict.unresolved),
                    len(verdict.links), here.rounds, here.runs,
                )
            )  # fmt: skip
        columns.append(means(told, bad))
    return " | ".join(one if one == two else f"{one} ({two})" for one, two in zip(*columns, strict=True))


def bisection(nodes: int, bad: int, noise: str, trials: int) -> str:
    """One line of the second table."""
    told = []
    for seed in range(trials):
        here = cluster(nodes, bad, noise, seed)
        found = here.halve()
        named = set(found.culprits)
        unnamed = len({node for group in found.together for node in group})
        told.append((len(named & here.culprits), len(named - here.culprits), unnamed, found.rounds, len(found.runs)))
    return " | ".join(means(told, bad))


def means(told: Sequence[tuple[int, ...]], bad: int) -> list[str]:
    """The mean of every column; the first one as a share of the bad nodes."""
    found, *others = (fmean(column) for column in zip(*told, strict=True))
    return [
        f"{found / bad:.1%}" if bad else "-",
        *(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in others),
    ]


if __name__ == "__main__":
    main()
