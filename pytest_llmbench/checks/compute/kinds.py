"""Kinds of findings of compute checks."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

ComputeKind = Literal[
    "below_peak", "hot", "not_repeatable", "other_numbers", "other_product", "slows_down", "throttled", "wrong_product",
]  # fmt: skip

finding: FindingMaker[ComputeKind | SharedKind] = make_finding
