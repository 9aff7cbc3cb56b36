"""Rules that compare one number of a run with a bound: the project's former ones, and others that are in use."""

from collections.abc import Callable

import numpy as np

from benchmarks.verdicts.scenarios import SKIP, Array

Rule = Callable[[Array], Array]

# Each gives a step time of every run, or an interval of it: the ends as two rows. None where the runs are too short.
FORMER: dict[str, Rule] = {
    "skip 5, mean": lambda x: x[:, SKIP:].mean(axis=1),
    "skip 5, median": lambda x: np.asarray(np.median(x[:, SKIP:], axis=1)),
    "mean of all": lambda x: x.mean(axis=1),
    "last value": lambda x: x[:, -1],
    "iterations 35-44": lambda x: x[:, 34:44].mean(axis=1),
    "steps 149, 169, 189": lambda x: x[:, [148, 168, 188]].mean(axis=1),
}
NEEDS = {"iterations 35-44": 44, "steps 149, 169, 189": 189}
INDEPENDENT = "skip 5, t interval"


def wrong_by_former(seconds: Array, truth: Array, distances: Array) -> dict[str, Array]:
    """Count the wrong verdicts of each rule.

    Args:
        seconds: step times, one row a run.
        truth: steady step time of each run.
        distances: of the bounds from it, as shares with their signs.
    """
    from scipy import stats  # noqa: PLC0415  # a second of each start

    bounds = truth[:, None] * (1 + distances)
    found = {}
    for name, rule in FORMER.items():
        if seconds.shape[1] >= NEEDS.get(name, 0):
            fast_enough = rule(seconds)[:, None] <= bounds
            found[name] = np.sum(fast_enough == (distances < 0), axis=0)
    after = seconds[:, SKIP:]
    mean = after.mean(axis=1)
    half = stats.t.ppf(0.99, after.shape[1] - 1) * after.std(axis=1, ddof=1) / np.sqrt(after.shape[1])
    passed, failed = (mean + half)[:, None] <= bounds, (mean - half)[:, None] > bounds
    found[INDEPENDENT] = np.sum(np.where(distances < 0, passed, failed), axis=0)
    return found
