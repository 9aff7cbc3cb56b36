"""Compares the log and the event files of one run, step by step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.record.series import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """Allowed difference of a number between the log and the event files, which have seven digits.

    `name` is an attribute of `Step`, called `what` in messages. `least` is the rounding of the log's decimals, in the
    unit of the number, `share` that of its digits. `of_one` is True if the log has the value of the last step even in
    lines whose other numbers are means of several.
    """

    name: str
    what: str
    least: float = 0.0
    share: float = 1e-6
    of_one: bool = True

    def differ(self, log: Step, event: Step) -> str | None:
        """Describe the difference in a step; None if the values agree or one is missing."""
        one, other = getattr(log, self.name), getattr(event, self.name)
        if one is None or other is None or (log.interval > 1 and not self.of_one):
            return None
        both_nan = math.isnan(one) and math.isnan(other)
        if one == other or both_nan or abs(one - other) <= self.least + self.share * abs(other):
            return None
        return f"the {self.what} of step {log.step} is {one:g} in its log and {other:g} in its event file"


def disagreements(log: Sequence[Step], events: Sequence[Step], digits: Sequence[Digits]) -> Iterator[str]:
    """Yield the differences in the steps that are in both."""
    logged = {step.step: step for step in log}
    for step in events:
        if step.step in logged:
            yield from (difference for number in digits if (difference := number.differ(logged[step.step], step)))
