"""Plain lines for a log: one for each change of state, and one a minute as a sign of life."""

from collections.abc import Iterator

from pytest_llmbench.reporting.live.words import counts, described
from pytest_llmbench.session.live.snapshot import LiveSnapshot, word_of

# A shorter session has its verdicts alone.
FIRST_S = 10.0
SIGN_S = 60.0
# Runs under way are named, up to this number.
_FEW = 4


class StateLines:
    """The changes from one picture of a session to the next, in lines.

    Attributes:
        first_s: seconds of a session before its first line.
    """

    def __init__(self, first_s: float = FIRST_S) -> None:
        self.first_s = first_s
        self._words: dict[tuple[str, str], str] = {}
        self._last_at: float | None = None

    def of(self, snapshot: LiveSnapshot) -> Iterator[str]:
        """Yield the lines that a picture adds."""
        if snapshot.at - snapshot.began < self.first_s:
            return
        changed = False
        for task in snapshot.tasks:
            word = word_of(task)
            before = self._words.get((task.about, task.name), "waiting")
            if word != before:
                self._words[task.about, task.name] = word
                changed = True
                yield described(task)
        if changed or self._last_at is None:
            self._last_at = snapshot.at
        elif snapshot.at - self._last_at >= SIGN_S:
            self._last_at = snapshot.at
            yield counts(snapshot)
            under_way = [task for task in snapshot.tasks if task.state == "running"]
            if len(under_way) <= _FEW:
                yield from (described(task) for task in under_way)
