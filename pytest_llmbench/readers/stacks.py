"""Reads the stacks that the processes of a run wrote when they were asked because it may hang."""

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.wire import layout

# Work that may take minutes and then ends by itself, by the files in the stack of the main thread.
_PAUSES = {
    "compiles": re.compile(r"torch/_dynamo/convert_frame\.py|torch/_inductor/(graph|codecache)\.py|triton/compiler/"),
    "reads or writes a checkpoint": re.compile(r"torch/serialization\.py|torch/distributed/checkpoint/"),
}
_THREAD = re.compile(r"^(?=Thread )", re.MULTILINE)
_MOST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to one request by file name: stacks, or the kernel's state of processes that were unable to answer."""

    stacks: dict[str, str]
    states: dict[str, str]

    @property
    def pause(self) -> str | None:
        """Long work of one of the processes, as words for a message; None without such work."""
        threads = (thread for stacks in self.stacks.values() for thread in _THREAD.split(stacks))
        main = [thread for thread in threads if '"MainThread"' in thread.partition("\n")[0]]
        return next((words for words, seen in _PAUSES.items() if any(map(seen.search, main))), None)


def read_answers(folder: Path, asked: str) -> Answers:
    """Read what the processes of a run answered to a request."""
    answers = Answers({}, {})
    for path in sorted((folder / layout.STACKS).glob("*.txt")):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                to, _, text = file.read(_MOST_BYTES).partition("\n")
        except OSError:
            continue
        if to == asked:
            stands_still = text.startswith("the process is ")
            (answers.states if stands_still else answers.stacks)[path.stem] = text.strip()
    return answers
