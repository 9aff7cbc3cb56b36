"""A step log of a rank in memory."""

from typing import Any

from pytest_llmbench.core.unix_clock import UnixClock


class Kept:
    """Stands in for `StepLog` where a test looks at the steps itself.

    Attributes:
        clock: see `StepLog`.
        steps: what was logged of each, in order.
        may_end_early: see `StepLog`.
    """

    may_end_early = False

    def __init__(self) -> None:
        self.clock = UnixClock()
        self.steps: list[dict[str, Any]] = []

    def phase(self, *_: object) -> None:
        """See `StepLog`."""

    def training(self, *_: object) -> None:
        """See `StepLog`."""

    def step(self, **measured: Any) -> None:
        """See `StepLog`."""
        self.steps.append(measured)
