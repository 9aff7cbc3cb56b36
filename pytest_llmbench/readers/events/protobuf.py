"""The wire format of protocol buffers: as much of it as event files need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


class Malformed(Exception):  # noqa: N818 - it is a finding about data, no error of ours
    """Bytes that are not a message."""


class WireField(NamedTuple):
    """One field of a message: a varint has its value as `integer`, every other kind its bytes as `data`."""

    number: int
    kind: int
    integer: int
    data: bytes


def fields(message: bytes) -> Iterator[WireField]:
    """Yield a message's fields as they come.

    Raises:
        Malformed: it ends within a field, or has a kind of field that event files do not.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            integer, at = _varint(message, at)
            yield WireField(number, kind, integer, b"")
            continue
        size = _SIZES.get(kind)
        if kind == LENGTH:
            size, at = _varint(message, at)
        if size is None:
            raise Malformed(f"a field of the unknown kind {kind}")
        if at + size > len(message):
            raise Malformed("a field ends after its message")
        yield WireField(number, kind, 0, message[at : at + size])
        at += size


def signed(integer: int) -> int:
    """A varint as the int64 that it stands for."""
    return integer - (1 << 64) if integer >> 63 else integer


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    raise Malformed("a number without an end")
