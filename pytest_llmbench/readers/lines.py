"""Lines of a log as the framework wrote them: without the prefixes, colours and progress bars of what carried them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Longer than any line that means anything; a log without line ends must not fill the memory.
_LONGEST = 65536
_CHUNK = 65536

_END = re.compile(rb"([\r\n])")
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles
    r"|\x1b[@-Z\\-_]"
)
# Each of these may stand before a line, and more than one of them: `0: [default3]: iteration ...`.
_PREFIX = re.compile(
    r"""\s*(?:
        \[rank\d+\]:\ ?                          # torch
      | \[[A-Za-z_]*\d+\]:                       # torchrun --tee: the role
      | \[[^\]\s]*\d+,\d+\]<std(?:out|err|diag)>:\ ?  # mpirun --tag-output
      | \d+:\                                    # srun --label
      | (?!(?:debug|epoch|error|fatal|info|iteration|loss|note|ppl|slurmstepd|srun|step|usage|warning):)
        (?![\w.]*(?:Error|Exception|Interrupt|Warning):)
        (?=[a-z.-]+:|[A-Za-z.-]*\d)              # a host has a digit in its name, or no capital letter
        [A-Za-z0-9][A-Za-z0-9.-]*:\ (?=\S)       # pdsh
    )""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        text: as the framework wrote it, without what came before and without its end.
        source: the prefix, which tells ranks apart that share a file; empty without one.
        file: the file's name.
        number: 1-based number in the file, by line feeds.
        whole: whether all of it is there, its end included; a log that was cut off ends without one.
    """

    text: str
    source: str
    file: str
    number: int
    whole: bool


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file one by one, whatever is in it. A carriage return ends a line, too.

    A file that cannot be read has none. Of a line longer than 64 KiB only the beginning is there.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(file, path.name)
    except OSError:
        return


def last_lines(path: Path) -> list[Line]:
    """Read the lines in the last 64 KiB of a file, at constant cost; their numbers start where the reading does."""
    try:
        with path.open("rb") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - _CHUNK))
            lines = list(_lines(file, path.name))
    except OSError:
        return []
    return lines[1:] if start else lines


def split_prefix(text: str) -> tuple[str, str]:
    """Split what launchers put before a line from the line: `("[default3]:", " iteration ...")`."""
    end = 0
    while match := _PREFIX.match(text, end):
        end = match.end()
    return text[:end].strip(), text[end:]


def _lines(file: BinaryIO, name: str) -> Iterator[Line]:
    for raw, number, whole in _pieces(file):
        text = raw.lstrip(b"\0").decode("utf-8", errors="replace")  # a file truncated while it is written has a hole
        source, text = split_prefix(_ESCAPES.sub("", text) if "\x1b" in text else text)
        yield Line(text=text, source=source, file=name, number=number, whole=whole)


def _pieces(file: BinaryIO) -> Iterator[tuple[bytes, int, bool]]:
    """Yield what is between line ends, the number of its line, and whether all of it is there."""
    begun, too_long, number = b"", False, 1
    while chunk := file.read(_CHUNK):
        parts = _END.split(begun + chunk)
        begun = parts.pop()
        for piece, end in zip(parts[::2], parts[1::2], strict=True):
            yield piece[:_LONGEST], number, not too_long and len(piece) <= _LONGEST
            too_long = False
            number += end == b"\n"
        if len(begun) > _LONGEST:
            begun, too_long = begun[:_LONGEST], True
    if begun:
        yield begun, number, False
