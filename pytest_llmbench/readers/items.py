"""Items that a line of a log can contain. Dialects turn lines into items, and `log` turns items into a step series."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_llmbench.core.record.claims import ClaimName


class Unreadable(Exception):  # noqa: N818 - it is a finding about a line, no error of ours
    """A damaged step line; the message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """A line about one optimizer step, or with the means of several. A missing value is None."""

    step: int  # 1-based number of its last step
    interval: int | None = None  # number of its steps; None for all steps since the line before
    first_apart: bool = False  # whether such logs have a further line for step 1, which the next line's mean includes
    at: float | None = None  # time of printing, in seconds by the log's own clock
    revises: bool = field(
        default=False, compare=False
    )  # whether it may complete or correct an earlier line of its step
    seconds: float | None = None  # duration of one step
    tokens: int | None = None  # of one step over all ranks
    samples: int | None = None  # sequences of one step over all ranks
    loss: float | None = None  # nat per token; it and the norm may be NaN or infinite
    grad_norm: float | None = None
    peak_memory_bytes: int | None = None  # highest of the ranks that log it
    reported: Mapping[str, float] = field(default_factory=dict)  # further numbers by the framework's own names


@dataclass(frozen=True, slots=True)
class Total:
    """A number about the whole run; the first one of each name counts."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Count:
    """One event of a kind; their number becomes a total of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class WorldSize:
    """Number of ranks, which the framework prints once at the start of a run."""

    ranks: int


@dataclass(frozen=True)
class _Words:
    """A statement of a program, in its own words."""

    words: str


class Begun(_Words):
    """The framework's announcement of its first step, printed once per run with the time."""


@dataclass(frozen=True, slots=True)
class Node:
    """A launcher's line with the number of ranks that it starts on a host; every line counts."""

    host: str
    ranks: int


@dataclass(frozen=True, slots=True)
class LogInterval:
    """The framework's log interval, in steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class Said:
    """A setting of the training as the framework prints it (a claim of `core.record.claims`); every line counts."""

    name: ClaimName
    value: float | str
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Printed:
    """Any setting of the training, by the framework's own name and as text; `compared` if a claim is made of it.

    `indent` is that of a line of YAML: names in it get their section's in front, `model.optim.lr`. A section has no
    value, and `-` is one more value of the setting before it.
    """

    name: str
    value: str
    compared: bool = False
    indent: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """An evaluation or a checkpoint, whose time is outside of steps."""


class BadEnd(_Words):
    """A launcher's report that a process ended with an error, perhaps after it did all its work."""


class Contradiction(_Words):
    """Lines that cannot all be true, in words; the first one is reported."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Number of skipped steps so far, up to `step` of all steps."""

    step: int
    so_far: int


class Completed(_Words):
    """The framework's statement that it did all its work."""


class Failed(_Words):
    """The framework's report of a failure, which explains a run without `Completed`.

    Dialects must recognize lines with one of `patterns.FAILURES` by themselves, as a second pass reads them after all
    other lines.
    """


_OfRun = Total | Count | WorldSize | Node | Begun | LogInterval | BadEnd | Contradiction | Completed | Failed
Item = StepLine | Pause | _OfRun


@dataclass(frozen=True, slots=True)
class Needles:
    """Words of which every meaningful line contains at least one, so that other lines may be skipped.

    `always` are words in the whole log, in addition to those of failures; if empty, every line is read. `first` are
    further words that count up to the first step, for the settings of the training.
    """

    always: tuple[bytes, ...] = ()
    first: tuple[bytes, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        """All words, each once."""
        return tuple(dict.fromkeys((*self.always, *self.first)))


EVERY_LINE = Needles()

# Returns the items of one line without its prefix, in order; Unreadable for a damaged step line is its only exception.
Parse = Callable[[str], Iterable[Item]]

# Returns the settings that one line prints, and its count of skipped steps.
Claims = Callable[[str], Iterable[Said | Printed | Skipped]]
