"""Items that a line of a log can contain. A dialect turns lines into these; `log` makes a step series of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_llmbench.core.record.claims import ClaimName


class Unreadable(Exception):  # noqa: N818 - it is a finding about a line, no error of ours
    """A line that looks like a step and cannot be parsed; the message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """A line about one optimizer step, or about several whose mean it gives. A missing value is None.

    Attributes:
        step: 1-based number of the last step it is about.
        interval: how many steps it is about; None for as many as there are since the line before it.
        first_apart: whether such a log has a line for step 1 alone, in addition to those of its interval, whose step is
            in the next line's mean, too.
        at: when it was printed, in seconds by the log's own clock.
        revises: whether it may add to, or correct, an earlier line about the same step.
        seconds: duration of one step.
        tokens: tokens of one step over all ranks.
        samples: sequences of one step over all ranks.
        loss: nat per token; may be NaN or infinite.
        grad_norm: may be NaN or infinite.
        peak_memory_bytes: highest of the ranks that log it.
        reported: further numbers by the framework's own words.
    """

    step: int
    interval: int | None = None
    first_apart: bool = False
    at: float | None = None
    revises: bool = field(default=False, compare=False)
    seconds: float | None = None
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    peak_memory_bytes: int | None = None
    reported: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Total:
    """A number about the whole run; the first of a name counts."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Count:
    """Something happened once more; how often it did is a total of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class WorldSize:
    """Number of ranks in the framework's log; it prints it once at the start of a run."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The framework's announcement of its first step, once a run and with the time."""

    words: str


@dataclass(frozen=True, slots=True)
class Node:
    """Launcher's line about the number of ranks that it starts on a host, by the given name; every line counts."""

    host: str
    ranks: int


@dataclass(frozen=True, slots=True)
class LogInterval:
    """The framework's log interval, in steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class Said:
    """A setting of the training as the framework prints it, see `core.record.claims`; every print of it counts."""

    name: ClaimName
    value: float | str
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """An evaluation or a checkpoint, whose time is in no step."""


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A launcher's report that a process ended with an error; it may have done all its work before."""

    words: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Number of steps skipped, at a number of steps done or skipped."""

    step: int
    so_far: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The framework's statement that it did all its work."""

    words: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The framework's report of a failure, which explains a run without `Completed`.

    Whether a line with one of `words.FAILURES` is a failure may not depend on the lines before it: a second pass reads
    it after all others.
    """

    words: str


Item = StepLine | Total | Count | WorldSize | Node | Begun | LogInterval | Pause | BadEnd | Completed | Failed


@dataclass(frozen=True, slots=True)
class Needles:
    """Words of which a meaningful line contains at least one: a line with none of them need not be read.

    Attributes:
        always: in the whole log, in addition to the words of failures. Without any, every line is read.
        first: further words until the first step: those of the training that is about to begin.
    """

    always: tuple[bytes, ...] = ()
    first: tuple[bytes, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        """Both, each once."""
        return tuple(dict.fromkeys((*self.always, *self.first)))


EVERY_LINE = Needles()

# A dialect returns the items of one line without its prefix, in order. For a line that looks like a step and cannot be
# parsed it raises Unreadable, its only exception.
Parse = Callable[[str], Iterable[Item]]

# The settings that one line prints, and what it counts beside steps.
Claims = Callable[[str], Iterable[Said | Skipped]]
