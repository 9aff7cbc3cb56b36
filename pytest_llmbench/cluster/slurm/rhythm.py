"""When the controller is asked: soon after something may have changed, and seldom otherwise."""

import time
from collections.abc import Callable

# Slurm's controller is a shared service: six queries a minute in the long run, for however many jobs. A quiet session
# saves queries for busier moments, up to as many.
QUIET_S = 10.0
_MOST_SAVED = 6.0
# From an event to its query, so that one query serves all events of that time. Each query without news doubles the
# pause after it.
_LIVELY_S = 2.0
# From an event to its query once every job is about to end: the session waits for this alone, so it may cost more.
_LAST_S = 0.25
_MORE_FOR_LAST = 3.0


class Rhythm:
    """The time of the next query.

    Attributes:
        next: by the clock, if there are queries left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted = clock()
        self._saved = _MOST_SAVED
        self._pause_s = _LIVELY_S
        self.next = 0.0

    def due(self, *, last: bool) -> bool:
        """Whether to ask now; `last` is true when every job is about to end."""
        now = self._clock()
        self._saved = min(_MOST_SAVED, self._saved + (now - self._counted) / QUIET_S)
        self._counted = now
        return now >= self.next and self._saved >= (1.0 - _MORE_FOR_LAST if last else 1.0)

    def stir(self, *, last: bool = False) -> None:
        """Note that something may have changed: a job was submitted, or its files show that it is about to end."""
        self.next = min(self.next, self._clock() + (_LAST_S if last else _LIVELY_S))

    def note_answer(self, *, changed: bool, last: bool, took_s: float) -> None:
        """Note an answer, and whether it was news; the pause after it is at least as long as it took."""
        self._saved -= 1.0
        begin = _LAST_S if last else _LIVELY_S
        self._pause_s = begin if changed else min(2 * self._pause_s, QUIET_S)
        self.next = self._clock() + max(self._pause_s, took_s)
