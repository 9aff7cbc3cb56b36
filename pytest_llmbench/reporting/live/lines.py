"""Plain lines for a log: one for each change of state, and one a minute as a sign of life."""

from collections.abc import Iterator

from pytest_llmbench.reporting.live.words import counts, describe_task
from pytest_llmbench.session.live.snapshot import LiveSnapshot, word_of

# A shorter session prints its verdicts alone.
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

    def update(self, snapshot: LiveSnapshot) -> Iterator[str]:
        """Yield a line for each change since the last picture; without changes, a sign of life a minute."""
        if snapshot.at - snapshot.began < self.first_s:
            return
        changed = False
        for task in snapshot.tasks:
            word = word_of(task)
            before = self._words.get((task.about, task.name), "waiting")
            if word != before:
                self._words[task.about, task.name] = word
                changed = True
                yield describe_task(task)
        if changed or self._last_at is None:
            self._last_at = snapshot.at
        elif snapshot.at - self._last_at >= SIGN_S:
            self._last_at = snapshot.at
            yield counts(snapshot)
            under_way = [task for task in snapshot.tasks if task.state == "running"]
            if len(under_way) <= _FEW:
                yield from (describe_task(task) for task in under_way)
