"""Launches that came to nothing: how often they are repeated, and when it is of no use any more."""

import time
from collections import defaultdict

# After a restart, a controller may refuse steps until it knows its nodes again. Measurements are never repeated: only
# launches of which no rank ever started.
PAUSES_S = (5.0, 20.0)
# So many runs in a row that could not be launched, each of them several times, and the session launches no more.
MOST_IN_A_ROW = 3


class Launches:
    """The outcomes of a session's launches.

    Attributes:
        reasons: the reason for each failed launch of a run, by its key.
        in_a_row: how many runs could not be launched since the last one that could.
        pause_s: planned duration of the last pause, seconds.
        note: the reason why nothing is launched at the moment, for people; else empty.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, list[str]] = defaultdict(list)
        self.in_a_row = 0
        self.pause_s = 0.0
        self.note = ""
        self._until = 0.0

    @property
    def paused(self) -> bool:
        """Whether nothing may be launched yet."""
        if time.monotonic() < self._until:
            return True
        self.note = ""
        return False

    @property
    def hopeless(self) -> bool:
        """Whether that many runs in a row could not be launched, so no other will be."""
        return self.in_a_row >= MOST_IN_A_ROW

    def failed(self, key: str, why: str) -> bool:
        """Note a launch that came to nothing; return whether that was the run's last."""
        reasons = self.reasons[key]
        reasons.append(why)
        if len(reasons) > len(PAUSES_S):
            self.in_a_row += 1
            return True
        self.pause(f"launched again in a moment: {why}", PAUSES_S[len(reasons) - 1])
        return False

    def pause(self, why: str, seconds: float = PAUSES_S[0]) -> None:
        """Launch nothing for a while."""
        self.note, self.pause_s = why, seconds
        self._until = time.monotonic() + seconds

    def go_on(self) -> None:
        """End a pause now."""
        self._until = 0.0

    def worked(self) -> None:
        """Note that a run was launched, whatever has become of it."""
        self.in_a_row = 0
