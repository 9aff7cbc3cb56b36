"""Reads TFRecord files, one record at a time, and the wire format of the messages in them.

A record is its length (uint64, little-endian), the masked CRC-32C of the length, its data, and the masked CRC-32C of
the data. This module implements the small part of protocol buffers that event files need.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

LONGEST = 16 * 1024 * 1024  # bytes; longer records are skipped, as scalars are far shorter
_CUT_OFF = "the file is cut off"


def records(file: BinaryIO) -> Iterator[bytes | str]:
    """Yield each record's data, or a message about its damage.

    Reading goes on after a damaged record if the start of the next one is known.
    """
    while head := file.read(12):
        if len(head) < 12:
            yield _CUT_OFF
            return
        length, check = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != check:
            yield "the checksum of its length is wrong: nothing after it can be found"
            return
        size = length + 4
        if length > LONGEST:
            whole = _pass_over(file, size)
            yield f"its {length} bytes are more than the {LONGEST} that are read" if whole else _CUT_OFF
            if not whole:
                return
            continue
        body = file.read(size)
        if len(body) < size:
            yield _CUT_OFF
            return
        data = body[:length]
        yield data if masked_crc32c(data) == struct.unpack("<I", body[length:])[0] else "its checksum is wrong"


def masked_crc32c(data: bytes) -> int:
    """CRC-32C, rotated and with an offset, as TFRecord defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli's polynomial, its bits in reverse
    return crc


_TABLE = tuple(_crc_of_byte(byte) for byte in range(256))


def _pass_over(file: BinaryIO, size: int) -> bool:
    """Skip `size` bytes; False if the file has fewer."""
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(min(here + size, end))
    return here + size <= end


VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


class Malformed(Exception):  # noqa: N818 - it is a finding about data, no error of ours
    """Bytes that break the wire format."""


class WireField(NamedTuple):
    """One field of a message: a varint has its value as `integer`, every other kind its bytes as `data`."""

    number: int
    kind: int
    integer: int
    data: bytes


def fields(message: bytes) -> Iterator[WireField]:
    """Yield a message's fields in order.

    Raises:
        Malformed: the message ends within a field, or has a kind of field that is unknown in event files.
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
    """Convert a varint to the int64 that it encodes."""
    return integer - (1 << 64) if integer >> 63 else integer


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    raise Malformed("a number without an end")
