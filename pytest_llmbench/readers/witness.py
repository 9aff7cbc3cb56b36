"""Compares the log and the event files of one run, step by step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.record.series import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """Allowed difference of a number in the log from the one in the files, which have seven digits of each.

    Attributes:
        name: attribute of `Step`.
        what: the same in words.
        least: rounding of the log's decimals, in the number's unit.
        share: rounding of its digits, as a part of the number.
        of_one: whether the log has it of the last step alone, also where its other numbers are means of several.
    """

    name: str
    what: str
    least: float = 0.0
    share: float = 1e-6
    of_one: bool = True

    def differ(self, log: Step, event: Step) -> str | None:
        """Describe the difference in a step; None if there is none, or a value is missing."""
        one, other = getattr(log, self.name), getattr(event, self.name)
        if one is None or other is None or (log.interval > 1 and not self.of_one) or _same(one, other):
            return None
        if abs(one - other) <= self.least + self.share * abs(other):
            return None
        return f"the {self.what} of step {log.step} is {one:g} in its log and {other:g} in its event file"


def disagreements(log: Sequence[Step], events: Sequence[Step], digits: Sequence[Digits]) -> Iterator[str]:
    """Yield the differences in the steps that both have."""
    logged = {step.step: step for step in log}
    for step in events:
        if step.step in logged:
            yield from (difference for number in digits if (difference := number.differ(logged[step.step], step)))


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
