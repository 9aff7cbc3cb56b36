"""Bounds that are calibrated on simulated good runs: how often a healthy run misses them, and a slower one."""

from dataclasses import dataclass

import numpy as np

from pytest_llmbench.judging.interval.calibration import calibrate

RUNS = (3, 5, 10, 20)
BETWEEN = (0.0005, 0.0015, 0.003)
# Standard error of a run's mean over some 200 steps, as a share, and the half width of its interval.
_WITHIN = 0.0004
_HALF_WIDTH = 2.35 * _WITHIN
_SLOWER = 0.02
_NEXT = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Runs judged by calibrated bounds."""

    runs: int
    between: float
    missed: float  # share of healthy runs that fail: their interval misses the bound
    found: float  # share of runs 2 % slower that do
    refused: float  # share of calibrations that were refused, as the runs differ too much


def tally_of(runs: int, between: float, calibrations: int, seed: int, *, one_slow: bool = False) -> Tally:
    """Calibrate on so many runs, many times, and judge other runs of the same system.

    Args:
        runs: good runs of a calibration.
        between: standard deviation between runs, as a share.
        calibrations: how many are made.
        seed: of the simulation.
        one_slow: one of the good runs is 3 % slower.
    """
    rng = np.random.default_rng([seed, runs, round(between * 1e5), one_slow])
    deviation = np.hypot(between, _WITHIN)
    good = 1 + deviation * rng.standard_normal((calibrations, runs))
    good[:, 0] -= 0.03 * one_slow
    after = 1 + deviation * rng.standard_normal((calibrations, _NEXT))
    missed, found, refused = 0, 0, 0
    for values, healthy in zip(good.tolist(), after, strict=True):
        try:
            bound = calibrate(values).bound
        except ValueError:
            refused += 1
            continue
        missed += int(np.sum(healthy + _HALF_WIDTH < bound))
        found += int(np.sum(healthy - _SLOWER + _HALF_WIDTH < bound))
    judged = max(1, (calibrations - refused) * _NEXT)
    return Tally(
        runs=runs, between=between, missed=missed / judged, found=found / judged, refused=refused / calibrations
    )
