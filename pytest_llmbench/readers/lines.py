"""Lines of a log as the framework wrote them: prefixes, colours and progress bars are removed."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Longer than every meaningful line; the limit protects the memory from a log without line ends.
_LONGEST = 65536
_TAIL = 65536
_BLOCK = 1 << 17

# How files of gzip, Zstandard, bzip2, xz, zip and UTF-16 begin.
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\xff\xfe", b"\xfe\xff")

_LINE = re.compile(rb"[^\r\n]*[\r\n]")
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[]_P^X][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles, times of Buildkite
    r"|\x1b[@-Z\\-_]"
)
# An object of JSON, or logfmt, around each line: Docker's files, `journalctl -o json`, Fluentd, Loki, clouds.
_WRAPPED = re.compile(
    r"""[^"{=]{0,200}\{.*?"(?:log|line|msg|message|MESSAGE|textPayload|body)" ?: ?("(?:[^"\\]|\\.)*") ?[,}].*$(?<=\})"""
    r"""|[a-z]+=.*? msg=("(?:[^"\\]|\\.)*")"""
)
# A time that a launcher or a collector of logs puts before each line.
_STAMP = re.compile(r"\s*(\[)?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?(1)\]):? ", re.ASCII)
# Each of these may stand before a line, and more than one of them: `0: [default3]: iteration ...`.
_PREFIX = re.compile(
    r"""\s*(?:
        \[rank\d+\]:\ ?                          # torch
      | \[[A-Za-z_]*\d+\]:                       # torchrun --tee: the role
      | \[[^\]\s,]*\d,\d+\]<std(?:out|err|diag)>:\ ?  # mpirun --tag-output
      | \((?:[^()\s]{1,99}\ )?(?:rank=\d+,\ )?pid=\d+(?:,\ ip=[^()\s,]{1,99})?\)\     # Ray, SkyPilot
      | (?![\d.-]*/)[\w.-]{1,99}/\d{1,9}\           # NeMo-Run: the end of the job's name, and the replica
      | \d+:\                                    # srun --label
      | (?<!\s\s)(?!(?:debug|epoch|error|fatal|info|iteration|loss|note|ppl|slurmstepd[\w.-]*|srun|step|usage|warning):)
        (?![\w.]*(?:Error|Exception|Interrupt|Warning):)
        (?=[a-z.-]+:|[A-Za-z.-]*\d)              # a host has a digit in its name, or no capital letter
        [A-Za-z0-9][A-Za-z0-9.-]*:\ (?=\S)       # pdsh; `    devices: 8` is YAML
    )""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the framework's text without prefix and line end."""

    text: str
    source: str  # the prefix, which separates ranks that share a file
    file: str
    number: int  # 1-based number in the file, by line feeds
    place: int  # a number that grows from line to line of a file, even if a carriage return ends them
    # True if the line is complete. The last line of a log that was cut off lacks its end, and a log that was truncated,
    # or whose disk lost a part, has NULs.
    whole: bool


def read_lines(path: Path, needles: Callable[[], Sequence[bytes]] = tuple) -> Iterator[Line]:
    """Yield the lines of a file one by one, for any content. A carriage return ends a line, too.

    An unreadable file yields an empty sequence. A line longer than 64 KiB is cut off. `needles` is called for each
    block of a file; if it returns words, lines without them may be skipped, which is much faster.
    """
    try:
        with path.open("rb", buffering=0) as file:
            yield from _lines(file, path.name, needles)
    except OSError:
        return


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed, or text in UTF-16; its lines cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(6).startswith(_PACKED)
    return False


def last_lines(path: Path) -> list[Line]:
    """Read the lines in the last 64 KiB of a file, at constant cost; their numbers count from the first line read."""
    try:
        with path.open("rb") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = list(_lines(file, path.name))
    except OSError:
        return []
    return lines[1:] if start else lines


def split_prefix(text: str) -> tuple[str, str]:
    """Split a line into the prefixes of launchers and the rest: `("[default3]:", " iteration ...")`."""
    end, source = 0, ""
    while match := _PREFIX.match(text, end) or _STAMP.match(text, end):
        end = match.end()
        source += match[0] if match.re is _PREFIX else ""
    return source.strip(), text[end:]


def unwrap(text: str) -> str:
    """Return the line that a collector of logs put into an object of JSON or into logfmt; any other line as it is."""
    if '"' in text and (match := _WRAPPED.match(text)):
        with suppress(ValueError):
            return str(json.loads(match[1] or match[2])).rstrip("\r\n")
    return text


def _lines(file: BinaryIO, name: str, needles: Callable[[], Sequence[bytes]] = tuple) -> Iterator[Line]:
    for raw, number, place, whole in pieces(file, needles):
        left = raw.lstrip(b"\0")  # a file that was truncated during writing has a hole of NULs
        text = unwrap(left.decode("utf-8", errors="replace"))
        source, text = split_prefix(_ESCAPES.sub("", text) if "\x1b" in text else text)
        # Digits may have been lost in a hole within the line.
        yield Line(text=text, source=source, file=name, number=number, place=place, whole=whole and b"\0" not in left)


def pieces(file: BinaryIO, needles: Callable[[], Sequence[bytes]] = tuple) -> Iterator[tuple[bytes, int, int, bool]]:
    """Yield the bytes between line ends with the `number`, `place` and `whole` of their `Line`."""
    begun, too_long, number, read = b"", False, 1, 0
    while chunk := file.read(_BLOCK):
        block = begun + chunk
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        counted = 0
        for begin, stop in _spans(block, end, needles()):
            number += block.count(b"\n", counted, begin)
            counted = begin
            yield (
                block[begin : min(stop, begin + _LONGEST)],
                number,
                read + begin,
                stop - begin <= _LONGEST and not (too_long and not begin),
            )
        number += block.count(b"\n", counted, end)
        read += end
        too_long = len(block) - end > _LONGEST or (too_long and not end)
        begun = block[end : end + _LONGEST]
    if begun:
        yield begun, number, read, False


def _spans(block: bytes, end: int, needles: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each line before `end`, or only of the lines with a needle."""
    if not needles:
        yield from ((match.start(), match.end() - 1) for match in _LINE.finditer(block, 0, end))
        return
    begin = 0
    # The search for a byte takes a twentieth of that for a word, and much noise consists of few different bytes.
    absent = {byte for byte in set(b"".join(needles)) if byte not in block}
    hits = {needle: block.find(needle, 0, end) for needle in needles if absent.isdisjoint(needle)}
    while hits := {needle: hit for needle, hit in hits.items() if hit >= 0}:
        first = min(hits.values())
        begin = max(begin, block.rfind(b"\n", begin, first) + 1, block.rfind(b"\r", begin, first) + 1)
        feed = block.find(b"\n", first, end)
        back = block.find(b"\r", first, end if feed < 0 else feed)
        stop = feed if back < 0 else back
        yield begin, stop
        begin = stop + 1
        hits = {needle: hit if hit >= begin else block.find(needle, begin, end) for needle, hit in hits.items()}
