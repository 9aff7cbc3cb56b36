"""What a log is made of: lines of text, or the records of an event file; and the numbers in them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO

from pytest_llmbench.readers.tensorboard import FIXED32, LENGTH, Malformed, fields, masked_crc32c, records

_NUMBER = re.compile(rb"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HEAD, _CHECK = 12, 4


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a piece: where it stands, and how it is or would be written."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of file is taken apart."""

    split: Callable[[bytes], list[bytes]]  # its pieces, which make the file again when they are joined
    numbers: Callable[[bytes], list[Number]]  # the numbers in a piece
    put: Callable[[bytes, Number, bytes], bytes]  # a piece with another text instead of a number


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def _written(piece: bytes) -> list[Number]:
    return [Number(match.start(), match.end(), match[0]) for match in _NUMBER.finditer(piece)]


def _replaced(piece: bytes, number: Number, text: bytes) -> bytes:
    return piece[: number.start] + text + piece[number.end :]


def _records(data: bytes) -> list[bytes]:
    found, at = [], 0
    for body in records(BytesIO(data)):
        size = _HEAD + len(body) + _CHECK
        found.append(data[at : at + size])
        at += size
    return found


def _scalars(piece: bytes) -> list[Number]:
    """The 32-bit floats of an event: NeMo and Megatron-LM write every number as one."""
    data = piece[_HEAD:-_CHECK]
    try:
        places = [data.index(value) for value in _floats(data)]
    except Malformed:
        return []
    return [
        Number(at, at + 4, f"{struct.unpack('<f', data[at : at + 4])[0]:.7g}".encode())
        for at in sorted(set(places))
    ]  # fmt: skip


def _floats(message: bytes, *path: int) -> Iterator[bytes]:
    """The bytes of each `Event.summary.value.simple_value`."""
    for part in fields(message):
        if path == (5, 1) and (part.number, part.kind) == (2, FIXED32):
            yield part.data
        elif part.kind == LENGTH and (*path, part.number) in {(5,), (5, 1)}:
            yield from _floats(part.data, *path, part.number)


def _rewritten(piece: bytes, number: Number, text: bytes) -> bytes:
    """The record with another value and the check sum that fits; what is no number spoils it."""
    data = piece[_HEAD:-_CHECK]
    try:
        value = struct.pack("<f", float(text))
    except (ValueError, OverflowError):
        return piece[:_HEAD] + data[: number.start] + b"\xff" * 4 + data[number.end :] + piece[-_CHECK:]
    return framed(data[: number.start] + value + data[number.end :])


def framed(data: bytes) -> bytes:
    """A record with its length and its check sums."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


TEXT = Form(split=_lines, numbers=_written, put=_replaced)
EVENTS = Form(split=_records, numbers=_scalars, put=_rewritten)
