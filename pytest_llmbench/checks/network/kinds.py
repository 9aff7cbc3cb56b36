"""Kinds of findings of network checks."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

NetworkKind = Literal[
    "dead_node", "failing_node", "slow_at_times", "slow_link", "slow_node", "slow_together", "uneven",
]  # fmt: skip

finding: FindingMaker[NetworkKind | SharedKind] = make_finding
