"""Every error this package raises on purpose.

`str(error)` is the message for people: the event, its place, and what to do. The attributes are for code.
"""

import difflib
from collections.abc import Iterable
from typing import Literal

from pytest_llmbench.core.text import harmless

ErrorKind = Literal[
    "does_not_hold", "failed", "left_alone", "negative", "no_gpu", "no_measurement", "no_memory", "no_rendezvous",
    "no_slurm", "no_space", "not_asked", "not_finite", "not_struck", "other_training", "ran_before", "short_read",
    "test_is_over", "unknown_statistic", "unreadable", "wrong_ranks",
]  # fmt: skip

# The reason of a check of which a rank lacks software begins so.
NOT_MEASURED = "not_measured"


class LLMBenchError(Exception):
    """Base of all errors raised on purpose by this package: no terminal obeys what others wrote into a message."""

    def __str__(self) -> str:
        return harmless(super().__str__())


class ConfigError(LLMBenchError):
    """The user gave an illegal option, key, name or unit."""


class UnitError(ConfigError):
    """A number without a unit, with an unknown one, or compared with one of another dimension."""


class ClusterError(LLMBenchError):
    """Slurm (or the local machine) refused a request, lost a job, or stopped answering."""


class RunError(LLMBenchError):
    """A run that cannot be judged: a rank died or hung, steps are missing, a number is implausible.

    Attributes:
        kind: a stable word for the cause.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class InconclusiveError(LLMBenchError):
    """A measurement that is too close to a threshold to decide."""


# Names in an error; more of them hide its sentence.
_SHOWN, _CLOSE = 36, 8


def unknown(what: str, given: object, legal: Iterable[str]) -> str:
    """The message for an unknown name of a `what`: a guess, and the legal names, or of very many those like it."""
    names = sorted(legal)
    close = difflib.get_close_matches(str(given), names, n=_CLOSE)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if len(names) > _SHOWN:
        alike = f", {', '.join(close)} among them" if close else ""
        return f"unknown {what} {str(given)!r}{hint}; {len(names)} are legal{alike}"
    return f"unknown {what} {str(given)!r}{hint}; legal: {', '.join(names) or 'none'}"
