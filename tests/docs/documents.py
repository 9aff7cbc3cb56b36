"""Documents that can be run: every fenced block says in a comment before it what it is.

The comment is a line of its own, directly before the block, and is not seen in rendered Markdown:

    <!-- file: NAME -->        the block is that file, in the document's own folder
    <!-- run -->               shell commands, one per line, run in that folder; each must exit with 0
    <!-- run: exit 1 -->       the last of them must exit with 1
    <!-- run: slurm -->        needs a Slurm that answers
    <!-- run: checkout -->     run in the root of the checkout instead
    <!-- output -->            what the commands before printed
    <!-- output: example -->   the same from another machine: numbers, times and session ids may be others,
                               the host is called `laptop` there and the folder `/home/you/llmbench`
    <!-- text -->              a picture or a formula: nothing to run (```text only)

What stands after `run:` may be combined: `<!-- run: slurm, exit 1 -->`.

In an output, `...` alone on a line stands for any number of lines, `...` in a line for anything in that
line, and one blank is as good as several: columns are as wide as their widest number.
"""

import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import SILENT_SLURM
from tests.support.warm import asking as warm_pytest

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *PAGES)

# The commands after an installation run as they do, each by a Python of its own, as those of README do in the tests of
# the wheel. Other pages have pytest forked.
FIRST_READ = "docs/install.md"
# These show two ranks. A reader of others has one core, so their trainings have one rank: half the time.
_GUIDES = ("docs/how-to/judge/prove-that-the-gate-fails.md", "docs/how-to/validate/find-wrong-numbers.md")
TWO_RANKS = ("README.md", FIRST_READ, "docs/tutorial.md", *_GUIDES)

_COMMENT = re.compile(r"<!--\s*(?P<kind>file|run|output|text)\s*(?::\s*(?P<what>.*?))?\s*-->")
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w+-]*)[^`]*")
_TIMEOUT_S = 300.0


class DocumentError(Exception):
    """A document does not say what it is, or does not do what it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block."""

    document: str
    line: int  # 1-based line of its fence
    kind: str  # text of its comment, empty without one
    what: str  # the comment after the colon
    language: str  # of the fence
    text: str

    @property
    def words(self) -> set[str]:
        return {word.strip() for word in self.what.split(",") if word.strip()}

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"


def read_blocks(document: str, text: str) -> list[Block]:
    """Find every block of a Markdown text, in order."""
    blocks: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.fullmatch(line)
        if fence is None:
            number += 1
            continue
        before = _COMMENT.fullmatch(lines[number - 1].strip()) if number else None
        end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == fence["fence"]), None)
        if end is None:
            raise DocumentError(f"{document}:{number + 1}: this block has no end")
        indent = len(fence["indent"])
        body = "".join(f"{inner[indent:]}\n" for inner in lines[number + 1 : end])
        blocks.append(_block(document, number + 1, before, fence["language"], body))
        number = end + 1
    return blocks


def _block(document: str, line: int, comment: re.Match[str] | None, language: str, text: str) -> Block:
    kind = comment["kind"] if comment else ""
    what = (comment["what"] or "") if comment else ""
    return Block(document=document, line=line, kind=kind, what=what, language=language, text=text)


def check_marks(blocks: Sequence[Block]) -> None:
    """See that every block says what it is.

    Raises:
        DocumentError: one does not, or says what cannot be; with its line.
    """
    ran = False
    for block in blocks:
        if not block.kind:
            raise DocumentError(f"{block.where}: this {block.language or 'plain'} block has no comment before it")
        if block.kind == "text" and block.language not in {"", "text"}:
            raise DocumentError(f"{block.where}: a {block.language} block is a file, a run or an output, never text")
        if block.kind == "file" and not block.what:
            raise DocumentError(f"{block.where}: file needs a name: <!-- file: NAME -->")
        strangers = {word for word in block.words if not re.fullmatch(r"slurm|checkout|exit \d+", word)}
        if block.kind == "run" and strangers:
            raise DocumentError(f"{block.where}: run knows slurm, checkout and exit N, not {', '.join(strangers)}")
        if block.kind == "output" and block.what not in {"", "example"}:
            raise DocumentError(f"{block.where}: an output is an example or says nothing, not {block.what}")
        if block.kind == "output" and not ran:
            raise DocumentError(f"{block.where}: an output needs a run block before it")
        ran = ran or block.kind == "run"


def needs_slurm(blocks: Sequence[Block]) -> bool:
    """Whether a part of the document needs a Slurm."""
    return any(block.kind == "run" and "slurm" in block.words for block in blocks)


@dataclass(kw_only=True)
class Reader:
    """Somebody who does what a document says, in a folder of their own."""

    folder: Path  # folder of written files and of commands
    slurm: bool = False  # whether to run the part for Slurm, or the part for everywhere
    printed: str | None = None  # output of the last run block; None when that was for the other part
    shell: Sequence[str] = ("bash", "-c")
    environment: Mapping[str, str] = field(default_factory=lambda: _environment({}))

    def follow(self, blocks: Sequence[Block], start: Sequence[Block] = ()) -> None:
        """Write the files of `start`, and do what every block says.

        Raises:
            DocumentError: a command ends otherwise than it should, or prints something else.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder.with_name(f"{self.folder.name}-tmp")
        temporary.mkdir(exist_ok=True)
        # The lock of "one session at a time measures here" is in TMPDIR: two documents may be run at once.
        self.environment = _environment({"TMPDIR": str(temporary)})
        if not self.slurm:  # plans are for clusters that are not here
            self.environment = {**self.environment, "PATH": f"{SILENT_SLURM}{os.pathsep}{self.environment['PATH']}"}
        if blocks and blocks[0].document != FIRST_READ:
            forked = warm_pytest.script(temporary / "bin")
            self.environment = {**self.environment, "PATH": f"{forked}{os.pathsep}{self.environment['PATH']}"}
        if blocks and blocks[0].document not in TWO_RANKS and hasattr(os, "sched_getaffinity"):
            core = random.choice(sorted(os.sched_getaffinity(0)))
            self.shell = ("taskset", "--cpu-list", str(core), *self.shell)
        for block in (*start, *blocks):
            if block.kind == "file":
                path = self.folder / block.what
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.kind == "run":
                mine = ("slurm" in block.words) == self.slurm
                self.printed = self._run(block) if mine else None
            elif block.kind == "output" and self.printed is not None:
                compare(block, self._as_example(self.printed) if block.what == "example" else self.printed)

    def _as_example(self, printed: str) -> str:
        """What was printed, with the names of the documents' own machine."""
        named = printed.replace(str(self.folder), "/home/you/llmbench")
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "laptop", named)

    def _run(self, block: Block) -> str:
        printed, lines = "", list(commands(block))
        for number, command in enumerate(lines, start=1):
            expected = _exit_status(block) if number == len(lines) else 0
            status, text = self._bash(command, CHECKOUT if "checkout" in block.words else self.folder)
            printed += text
            if status != expected:
                raise DocumentError(
                    f"{block.where}: `{command}` exited with {status}, not with {expected}; it printed\n{text}"
                )
        return printed

    def _bash(self, command: str, folder: Path) -> tuple[int, str]:
        done = subprocess.run(
            [*self.shell, command], cwd=folder, env=dict(self.environment), text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S,
        )  # fmt: skip
        return done.returncode, done.stdout


def commands(block: Block) -> Iterator[str]:
    """The commands of a run block. `make` only says what it would do: that its target exists is what is tested."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        command = line.strip().removeprefix("$ ")
        if command and not command.startswith("#"):
            yield re.sub(r"^make(?= |$)", "make -n", command)


def _exit_status(block: Block) -> int:
    return next((int(word.split()[1]) for word in block.words if word.startswith("exit ")), 0)


def compare(block: Block, printed: str) -> None:
    """See that an output block is what was printed.

    Raises:
        DocumentError: it is not; names the first line that is missing.
    """
    wanted, there = _lines(block.text), _lines(printed)
    missing = _first_missing(wanted, there, _example_pattern if block.what == "example" else _pattern)
    if missing is not None:
        shown = "\n".join(there)
        raise DocumentError(f"{block.where}: not printed in this place: {missing!r}; printed was\n{shown}")


def _lines(text: str) -> list[str]:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _first_missing(wanted: Sequence[str], there: Sequence[str], pattern: Callable[[str], str]) -> str | None:
    """The first line after which nothing fits any more; None when everything does."""
    text = "".join(f"{line}\n" for line in there)
    patterns = [pattern(line) for line in wanted]
    if re.fullmatch("".join(patterns), text):
        return None
    for count, line in enumerate(wanted, start=1):
        if not re.match("".join(patterns[:count]), text):
            return line
    return "the end: more follows"


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    # Between two blanks dots stand for nothing, too: a column's padding is one blank here.
    meaning = {" ... ": "(?: .*?)? ", "...": ".*?"}
    return "".join(meaning.get(part) or re.escape(part) for part in re.split(r"( \.\.\. |\.\.\.)", line)) + r"\n"


# Session ids and numbers; those that are part of a name (opt125m, H200) or of a version are not loose.
_LOOSE = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}|(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w]|\.\d|-\w)")


def _example_pattern(line: str) -> str:
    """As `_pattern`, but every loose number stands for any other, and `...` for a session id."""
    parts = _LOOSE.split(line)
    loose = [
        r"[\w-]+" if "-" in found[0] and len(found[0]) > 20 else r"\d[\d,.]*(?:e[+-]?\d+)?"
        for found in _LOOSE.finditer(line)
    ]
    inside = [_pattern(part).removesuffix(r"\n") for part in parts]
    if line == "...":
        return _pattern(line)
    return "".join(f"{text}{number}" for text, number in zip(inside, [*loose, ""], strict=True)) + r"\n"


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What a reader's shell has: our Python first, and nothing of the test session that runs us."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "LLMBENCH_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    return {**clean, "PATH": path, "COLUMNS": "80", "PYTHONWARNINGS": "", **extra}
