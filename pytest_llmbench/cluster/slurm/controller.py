"""Slurm's controller: whether it answers, whether it is just back, and what its refusals are worth then."""

import threading
import time
from collections.abc import Hashable
from pathlib import Path

from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError, QueueFullError, full_queue, is_silence
from pytest_llmbench.cluster.slurm.queries import GLANCE_S, SlurmQueries
from pytest_llmbench.cluster.slurm.rhythm import QUIET_S
from pytest_llmbench.core.errors import ClusterError

_NEVER = float("inf")
# A controller that was away learns of its nodes within this time, and refuses what they could run until then.
_BACK_S = 60.0
_WAITED_S = 5.0


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
        """Whether the last question to it was left unanswered."""
        return self._silent_since is not None

    @property
    def silent_s(self) -> float:
        """Seconds since it fell silent; 0 while it answers."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    @property
    def is_just_back(self) -> bool:
        """Whether it was away a moment ago: it may still miss its nodes, and take jobs that ended for alive."""
        return time.monotonic() - self._back_at <= _BACK_S

    def note_answer(self, error: str, began: float) -> None:
        """Add one note when it was silent twice or for long, and one when it answers again.

        Args:
            error: of a command; empty where it succeeded.
            began: our clock when the command began.
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
        if twice or time.monotonic() - began > GLANCE_S:
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

        Raises:
            ClusterError: Slurm refuses such a job, in its own words, or is silent.
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

        Args:
            refusal: of a command.
            began: our clock when the command began: one that takes long has waited for the controller.
        """
        now = time.monotonic()
        if now - began > _WAITED_S:
            self._back_at = now
        if isinstance(refusal, NoAnswerError):
            return refusal
        if limit := full_queue(str(refusal)):
            return QueueFullError(limit, command=refusal.command)
        if not self._knew_no_node and self._queries.knows_no_node():
            self._knew_no_node, self._back_at = True, now
        if self.was_silent or self.is_just_back:
            return NotYetError(f"{refusal} (it may not know its nodes yet after a restart)", command=refusal.command)
        return refusal
