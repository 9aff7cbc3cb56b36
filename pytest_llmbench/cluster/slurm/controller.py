"""Slurm's controller: when to query it, whether it answers, and whether a refusal after its restart counts."""

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path

from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError, QueueFullError, full_queue, is_silence
from pytest_llmbench.cluster.slurm.queries import SHORT_WAIT_S, SlurmQueries
from pytest_llmbench.core.errors import ClusterError

_NEVER = float("inf")
# A controller that was away learns of its nodes within this time, and refuses what they could run until then.
_BACK_S = 60.0
_WAITED_S = 5.0
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
    """The time of the `next` query, if any are left: soon after something may have changed, and seldom otherwise."""

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


class SlurmController:
    """The controller as its last answers show it."""

    def __init__(self, queries: SlurmQueries) -> None:
        self._queries = queries
        self._silent_since: float | None = None
        self._noted_silence = False
        self._back_at = -_NEVER
        self._knew_no_node = False
        self._testing = threading.Lock()
        self._tested: set[Hashable] = set()

    @property
    def was_silent(self) -> bool:
        """True if the last question to it was left unanswered."""
        return self._silent_since is not None

    @property
    def silent_s(self) -> float:
        """Seconds since its last answer; 0 while it answers."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    @property
    def is_just_back(self) -> bool:
        """True if it was away a moment ago: it may still miss its nodes, and list jobs as alive that have ended."""
        return time.monotonic() - self._back_at <= _BACK_S

    def note_answer(self, error: str, began: float) -> None:
        """Add one note when it was silent twice or for long, and one when it answers again.

        `error` is that of a command, empty where it succeeded, and `began` our clock when the command began.
        """
        if not is_silence(error):
            if self._noted_silence:
                self._queries.notes.append(f"Slurm answers again, after {self.silent_s:.0f} s")
            if self._silent_since is not None:
                self._back_at = time.monotonic()
            self._silent_since, self._noted_silence = None, False
            return
        twice = self._silent_since is not None
        self._silent_since = self._silent_since or began
        if twice or time.monotonic() - began > SHORT_WAIT_S:
            self.say_silent(error)

    def say_silent(self, reason: str) -> None:
        """Add the note that it is silent, once until it answers again."""
        if not self._noted_silence:
            self._noted_silence = True
            self._queries.notes.append(
                f"Slurm does not answer ({reason}): what runs goes on, what waits is launched when it does; it is "
                f"asked again every {QUIET_S:.0f} s"
            )

    def test(self, shape: Hashable, script: Path) -> None:
        """Check that Slurm could ever start a job like that of a script, once for each shape.

        Raises ClusterError if Slurm refuses such a job, in its own words, or is silent.
        """
        with self._testing:
            if shape not in self._tested:
                began = time.monotonic()
                try:
                    self._queries.run(["sbatch", "--test-only", str(script)])
                except ClusterError as error:
                    raise self.soften_if_just_back(error, began) from error
                self._tested.add(shape)
                self._knew_no_node = False

    def soften_if_just_back(self, refusal: ClusterError, began: float) -> ClusterError:
        """The refusal, as a temporary one where the controller may still miss its nodes after a restart.

        A restart may have passed unseen: a controller that lists every node as down or unknown counts as just started,
        but only once, since nodes may be down for good.
        A command that `began` long ago, by our clock, has waited for the controller.
        """
        now = time.monotonic()
        if now - began > _WAITED_S:
            self._back_at = now
        if isinstance(refusal, NoAnswerError):
            return refusal
        if limit := full_queue(str(refusal)):
            return QueueFullError(limit)
        if not self._knew_no_node and self._queries.knows_no_node():
            self._knew_no_node, self._back_at = True, now
        if self.was_silent or self.is_just_back:
            return NotYetError(f"{refusal} (it may not know its nodes yet after a restart)")
        return refusal
