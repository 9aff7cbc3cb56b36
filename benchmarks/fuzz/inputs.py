"""Inputs of a fuzzer: real samples, damaged by seeded chance in ways that do not know what they damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

# Small inputs, so that a million takes minutes.
_LARGEST = 6000
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_NUMBERS = (
    b"0", b"-1", b"1", b"1e999", b"-1e999", b"nan", b"NaN", b"Infinity", b"-inf", b"9" * 19, b"9" * 400, b"9" * 5000,
    b"18446744073709551616", b"9223372036854775808", b"1e-999", b"0x7f", b"1_000", b"1,000", b"1.", b".5", b"1e", b"",
    "\u0665".encode(), b"1\x002", b"00000000012", b"+1", b"--1", b"1:30:00", b"0-99999999999", b"1-", b"\xff\xfe",
)  # fmt: skip
_WORDS = (
    b"\x00", b"\x00" * 64, b"\x1b[2J", b"\x1b]0;x", b"\x1b]", b"\x9b31m", b"\r", b"\n", b"\r\n", b"\x0b", b"\x1e",
    b"\x1f", b"\xff", b"\xed\xa0\x80", b"\xef\xbf\xbe", b"\xc2\x85", "\u2028".encode(), b"|", b"=", b": ", b"{", b"}",
    b"[", b"]", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"<", b">", b"&a;", b"]]>",
    b"<!DOCTYPE a [<!ENTITY a 'b'>]>",
    b"<<: *a", b"&a ", b"*a", b"!!python/object/apply:os.system ['true']", b"!!binary x", b"!!timestamp x", b"--- ",
    b"? ", b"- ", b"\t", b"null", b"true", b"{}", b"[]", b"2026-02-30", b"../", b"/", b"%s%n{0}{a}", b"srun: error: ",
    b"[" * 3000, b"{" * 3000, b'{"a":' * 1500, b"- " * 2000, b"(" * 3000, b" " * 4000, b"a" * 70_000,
)  # fmt: skip
_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf"), 0.1, "", "x", "nan", "1",
    "10 words/s", "1e999 s", "-5 GiB", "00:30:00", "\x00", "\x1b[31m", "\ud800", "../../x", "/etc/passwd", "x" * 5000,
    [], {}, [[]], [None], {"": {}}, {"x": 1}, [1, "a", {}], "${HOME}", "$(true)", "{}", "{0}", "%s",
)  # fmt: skip

Change = Callable[[bytes, Random], bytes]


def damaged(seeds: Sequence[bytes], rng: Random, *, document: bool) -> bytes:
    """One input; of a document in JSON half of the time one that is whole and has another value somewhere."""
    data = rng.choice(seeds)
    if document and rng.random() < 0.5 and (changed := _with_another_value(data, rng)) is not None:
        return changed
    data = _window(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        change = rng.choice(_CHANGES)
        data = change(data, rng) if change is not _splice else _splice(data, rng, _window(rng.choice(seeds), rng))
    return data


@dataclass(frozen=True, slots=True)
class Torn:
    """A log with one line damaged in a way that can be seen."""

    kind: str  # how
    data: bytes  # the rest
    # Possible originals: the log, without the line, and with the line that came between elsewhere.
    whole: tuple[bytes, ...]


def torn(data: bytes, rng: Random) -> Torn:
    """Cut a log off within a line, put a hole of NULs into one, or another line, as two ranks do that share a file."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    before, line, after = b"".join(lines[:at]), lines[at], b"".join(lines[at + 1 :])
    place = rng.randrange(len(line))
    kind = rng.choice(("cut off", "hole", "another line"))
    if kind == "cut off":
        return Torn(kind, before + line[:place], (data, before))
    if kind == "hole":
        stop = max(place + 1, min(len(line) - 1, place + rng.randint(1, 12)))
        return Torn(kind, before + line[:place] + b"\0" * (stop - place) + line[stop:] + after, (data, before + after))
    other = rng.choice(lines)
    meant = (line, b"", other, line + other, other + line)
    left = before + line[:place] + other + line[place:] + after
    return Torn(kind, left, tuple(before + each + after for each in meant))


def _window(data: bytes, rng: Random) -> bytes:
    if len(data) <= _LARGEST:
        return data
    start = rng.choice((0, len(data) - _LARGEST, rng.randrange(len(data) - _LARGEST)))
    return data[start : start + _LARGEST]


def _places(data: bytes, rng: Random, longest: int = 40) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.randint(0, longest))


def _flip(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _delete(data: bytes, rng: Random) -> bytes:
    first, last = _places(data, rng, rng.choice((3, 40, 400)))
    return data[:first] + data[last:]


def _double(data: bytes, rng: Random) -> bytes:
    first, last = _places(data, rng, rng.choice((10, 400)))
    return data[:last] + data[first:last] * rng.choice((1, 2, 30)) + data[last:]


def _insert(data: bytes, rng: Random) -> bytes:
    first, last = _places(data, rng, rng.choice((0, 10)))
    return data[:first] + rng.choice(_WORDS) + data[last:]


def _number(data: bytes, rng: Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _insert(data, rng)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(_NUMBERS) + data[match.end() :]


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _behead(data: bytes, rng: Random) -> bytes:
    return data[rng.randrange(len(data) + 1) :]


def _swap(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return _flip(data, rng)
    one, other = rng.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _splice(data: bytes, rng: Random, other: bytes = b"") -> bytes:
    first, last = _places(other, rng, 2000)
    at = rng.randrange(len(data) + 1)
    return data[:at] + other[first:last] + data[at:]


_CHANGES: Sequence[Change] = (
    _flip, _delete, _double, _insert, _insert, _number, _number, _cut, _behead, _swap, _splice,
)  # fmt: skip


def _with_another_value(data: bytes, rng: Random) -> bytes | None:
    """A JSON document with one value replaced, taken away or renamed; None of what is no JSON."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    node = document
    while isinstance(node, (dict, list)) and node:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(keys)
        inner = node[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.15:
            kind = rng.random()
            if kind < 0.15:
                del node[key]
            elif kind < 0.3 and isinstance(node, dict):
                node[str(rng.choice(_VALUES))[:50]] = node.pop(key)
            else:
                node[key] = rng.choice(_VALUES)
            break
        node = inner
    return json.dumps(document).encode()
