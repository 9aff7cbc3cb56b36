"""The sanity gate: numbers are computed only from a run that is complete, finite and plausible."""

from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity import losses, origin, ranks, rates, steps, work
from pytest_llmbench.judging.sanity.evidence import Evidence, Origin
from pytest_llmbench.judging.sanity.rates import implausible
from pytest_llmbench.judging.sanity.steps import outside

__all__ = ["Evidence", "Origin", "first_problem", "implausible", "outside", "problems_of_steps"]

# In the order of their use to the reader: the first problem is the one that is reported.
_OF_RANKS = (
    steps.check_readable, steps.check_one_run, ranks.check_ranks, origin.check_origin, ranks.check_hosts,
    ranks.check_hardware, origin.check_different, work.check_claims, steps.check_early_end, steps.check_steps,
    work.check_counts, steps.check_end, origin.check_together, steps.check_work, losses.check_finite,
    losses.check_moving, losses.check_possible, losses.check_alike, losses.check_falling, losses.check_divergence,
    losses.check_copies, steps.check_stamps, steps.check_clock, rates.check_products,
)  # fmt: skip
_OF_A_COMMAND = (
    origin.check_run_of_log, steps.check_one_run, steps.check_completed, origin.check_labels, ranks.check_nodes_in_log,
    ranks.check_hardware, ranks.check_world_size, origin.check_dates, work.check_claims, steps.check_length,
    steps.check_lines, steps.check_work, losses.check_finite, losses.check_falling, losses.check_divergence,
    losses.check_moving_in_log, losses.check_copies_in_log, steps.check_clock, rates.check_logged_rates,
    steps.check_doubts,
)  # fmt: skip
# Checks that also apply to ranks that are still running.
_SO_FAR = (
    losses.check_finite, losses.check_moving, losses.check_possible, losses.check_alike, losses.check_falling,
    losses.check_divergence, losses.check_copies, steps.check_work, steps.check_stamps, rates.check_products,
)  # fmt: skip


def first_problem(evidence: Evidence, *, over: bool = True) -> Problem | None:
    """Return the first problem that keeps a run, `over` or still running, from being judged; None for a sane one."""
    checks = _OF_A_COMMAND if evidence.kind == "command" else _OF_RANKS if over else _SO_FAR
    return next((problem for check in checks for problem in check(evidence)), None)


def problems_of_steps(evidence: Evidence) -> Iterator[Problem]:
    """Yield all problems that the steps and losses of a run show by themselves."""
    for check in (*_SO_FAR, losses.check_moving_in_log, losses.check_copies_in_log, steps.check_clock):
        yield from check(evidence)
