"""A run that seems to hang: its processes are asked for their stacks, and may turn out to be alive."""

from pathlib import Path

from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.wire import layout
from pytest_llmbench.readers.stacks import Answers, read_answers
from pytest_llmbench.readers.steps.progress import named, phases

# Ranks look for a request every 3 seconds, and one that does not answer has its state told at the next look of another;
# py-spy takes up to 5 seconds a process.
_ANSWERS_S, _ANSWERS_OF_COMMANDS_S = 15.0, 30.0
# One that is in a pause is asked again.
_AGAIN_S = 60.0


class Stall:
    """One request for the stacks of a run, and further ones while it is in a pause."""

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder
        self._answers: Answers | None = None
        self._command = (folder / layout.DRIVER).exists()
        self._standing = phases(folder)
        self._ask(now)

    def over(self, now: float) -> bool:
        """Whether all have answered, or had the time to."""
        if self._answers is None:
            names = {path.stem for path in (self._folder / layout.STACKS).glob("*.txt")}
            limit_s = _ANSWERS_OF_COMMANDS_S if self._command else _ANSWERS_S
            if self._asked <= names or now - self._since >= limit_s:
                self._answers = read_answers(self._folder, str(self._number))
        return self._answers is not None

    def moves(self) -> bool:
        """Whether a rank has gone on since the request: then the run is slow, and does not hang."""
        return phases(self._folder) != self._standing

    @property
    def pause(self) -> str | None:
        """Work of a process that may take long, by the answers."""
        return self._answers.pause if self._answers is not None else None

    def ask_again(self, now: float) -> None:
        """Ask for the stacks of now, if the last ones are old."""
        if now - self._since >= _AGAIN_S:
            self._ask(now)

    def __str__(self) -> str:
        stacks, states = (self._answers.stacks, self._answers.states) if self._answers is not None else ({}, {})
        place = self._folder / layout.STACKS
        if self._command:
            return f"states and stacks of its processes: {place}" if stacks else ""
        silent = sorted(self._asked - {*stacks})
        told = f"stacks of {len(stacks)} of {counted(len(self._asked), 'rank')}: {place}" if self._asked else ""
        if not silent:
            return told
        who = named(self._folder, [int(name.rpartition("-")[2]) for name in silent])
        return f"{told}; {who} cannot answer: {states.get(silent[0], 'its process or its node stands still')}"

    @property
    def _asked(self) -> set[str]:
        """Names of the answers to wait for: of the driver, or of the ranks that have something left to do."""
        if self._command:
            return {layout.PROCESSES.removesuffix(".txt")}
        return {layout.rank_name(rank) for rank, each in self._standing.items() if each.phase != "done"}

    def _ask(self, now: float) -> None:
        for old in (self._folder / layout.STACKS).glob("*.txt"):
            old.unlink(missing_ok=True)
        file = self._folder / layout.ASKED
        self._number = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
        self._since, self._answers = now, None
        write_text(file, str(self._number))
