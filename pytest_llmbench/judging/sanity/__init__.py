"""The sanity gate: a run that is not whole, finite and plausible never yields a number."""

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.claims import claims
from pytest_llmbench.judging.sanity.counted import counted
from pytest_llmbench.judging.sanity.evidence import Evidence, Origin
from pytest_llmbench.judging.sanity.identity import different, origin, together
from pytest_llmbench.judging.sanity.labels import dated, labelled, stranger
from pytest_llmbench.judging.sanity.lines import lines, unreadable
from pytest_llmbench.judging.sanity.losses import (
    alike,
    copied,
    copied_in_log,
    falling,
    finite,
    moving,
    moving_in_log,
    possible,
)
from pytest_llmbench.judging.sanity.outside import outside
from pytest_llmbench.judging.sanity.ranks import hardware, hosts, nodes_in_log, ranks, world_size
from pytest_llmbench.judging.sanity.rates import implausible, logged, products
from pytest_llmbench.judging.sanity.steps import (
    clock,
    completed,
    doubts,
    ended_whole,
    long_enough,
    one_run,
    stamps,
    steps,
    work,
)

__all__ = ["Evidence", "Origin", "first_problem", "implausible", "outside"]

# The most telling ones first.
_OF_RANKS = (
    unreadable, one_run, ranks, origin, hosts, hardware, different, claims, counted,
    steps, ended_whole, together, work, finite, moving, possible, alike, falling, copied, stamps, clock, products,
)  # fmt: skip
_OF_A_COMMAND = (
    stranger, one_run, completed, labelled, nodes_in_log, hardware, world_size, dated, claims, long_enough, lines,
    work, finite, falling, moving_in_log, copied_in_log, clock, logged, doubts,
)  # fmt: skip


def first_problem(evidence: Evidence) -> Problem | None:
    """Return the first reason why the run cannot be judged, the most telling ones first."""
    checks = _OF_RANKS if evidence.kind == "ranks" else _OF_A_COMMAND
    for check in checks:
        for problem in check(evidence):
            return problem
    return None
