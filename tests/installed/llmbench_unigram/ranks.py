"""What the nodes know by name. It imports next to nothing: each session tries at collection whether they can."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.workloads.rank.context import RankContext
    from pytest_llmbench.workloads.rank.steplog import StepLog


def train(context: RankContext, log: StepLog) -> None:
    """See `llmbench_unigram.training.train`."""
    from llmbench_unigram import training  # noqa: PLC0415 - a fifth of a second of CPU time

    training.train(context, log)
