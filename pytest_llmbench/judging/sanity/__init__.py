"""The sanity gate: numbers are computed only from a run that is complete, finite and plausible."""

from collections.abc import Iterator

from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity import losses, steps
from pytest_llmbench.judging.sanity.evidence import Evidence, Origin
from pytest_llmbench.judging.sanity.origin import dated, different, labelled, origin, stranger, together
from pytest_llmbench.judging.sanity.ranks import hardware, hosts, nodes_in_log, ranks, world_size
from pytest_llmbench.judging.sanity.rates import implausible, logged, products
from pytest_llmbench.judging.sanity.steps import outside
from pytest_llmbench.judging.sanity.work import claims, counted

__all__ = ["Evidence", "Origin", "claims", "first_problem", "implausible", "outside", "problems_of_steps", "world_size"]

# In the order of their use to the reader: the first problem is the one that is reported.
_OF_RANKS = (
    steps.unreadable, steps.one_run, ranks, origin, hosts, hardware, different, claims, steps.ended_when_asked,
    steps.steps, counted, steps.ended_whole, together, steps.work, losses.finite, losses.moving, losses.possible,
    losses.alike, losses.falling, losses.diverging, losses.copied, steps.stamps, steps.clock, products,
)  # fmt: skip
_OF_A_COMMAND = (
    stranger, steps.one_run, steps.completed, labelled, nodes_in_log, hardware, world_size, dated, claims,
    steps.long_enough, steps.lines, steps.work, losses.finite, losses.falling, losses.diverging, losses.moving_in_log,
    losses.copied_in_log, steps.clock, logged, steps.doubts,
)  # fmt: skip
# Checks that also apply to ranks that are still running.
_SO_FAR = (
    losses.finite, losses.moving, losses.possible, losses.alike, losses.falling, losses.diverging, losses.copied,
    steps.work, steps.stamps, products,
)  # fmt: skip


def first_problem(evidence: Evidence, *, over: bool = True) -> Problem | None:
    """Return the first problem that keeps a run, `over` or still running, from being judged; None for a sane one."""
    checks = _OF_A_COMMAND if evidence.kind == "command" else _OF_RANKS if over else _SO_FAR
    return next((problem for check in checks for problem in check(evidence)), None)


def problems_of_steps(evidence: Evidence) -> Iterator[Problem]:
    """Yield all problems that the steps and losses of a run show by themselves."""
    for check in (*_SO_FAR, losses.moving_in_log, losses.copied_in_log, steps.clock):
        yield from check(evidence)
