"""Values that should be the same on all GPUs: one that differs from the majority is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_llmbench.checks.agreement import dissenters
from pytest_llmbench.checks.base import finding
from pytest_llmbench.core.record.health import Finding, Severity


def unlike(what: str, values: Mapping[tuple[str, str], str], *, action: str) -> Iterator[Finding]:
    """Yield a finding for everything that differs from the majority; for all, where no value has the majority.

    Args:
        what: the compared value, in words.
        values: by host and subject; leave out what is not known.
        action: recommended action for one that differs.
    """
    wrong = dissenters(values)
    counts = ", ".join(f"{count} × {value}" for value, count in Counter(values.values()).most_common())
    rest = f"others: {counts}" if wrong is not None else f"the right value is unknown: {counts}"
    for host, subject in values if wrong is None else wrong:
        yield finding(
            host, subject, "unlike_others", Severity.CONFIGURE, f"{what} {values[host, subject]}; {rest}", action
        )
