"""Event files as TensorBoard's writer makes them: an event for each scalar."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_llmbench.readers.tensorboard import masked_crc32c


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def simple(value: float) -> bytes:
    return b"\x15" + struct.pack("<f", value)


def record(step: int, values: Mapping[str, bytes]) -> bytes:
    """Encode an event with these tags, framed."""
    summary = b"".join(part(1, part(1, tag.encode()) + value) for tag, value in values.items())
    return framed(b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + part(5, summary))


def framed(data: bytes) -> bytes:
    """Frame one event."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def write(folder: Path, *records: bytes, begun: int = 1_700_000_000) -> Path:
    path = folder / f"events.out.tfevents.{begun}.host.1.0"
    path.write_bytes(b"".join(records))
    return path


def scalars(rows: Iterable[tuple[int, str, float]]) -> list[bytes]:
    """Encode an event for each (step, tag, value)."""
    return [record(step, {tag: simple(value)}) for step, tag, value in rows]


def moved(events: bytes, end: float) -> bytes:
    """Return the events of a file with the last one's time at `end`, and the others as long before it as they were."""
    found = []
    while events:
        (size,) = struct.unpack_from("<Q", events)
        found.append(events[12 : 12 + size])
        events = events[16 + size :]
    times = [struct.unpack_from("<d", event, 1)[0] for event in found]  # the first field of each
    return b"".join(
        framed(event[:1] + struct.pack("<d", end - times[-1] + time) + event[9:])
        for event, time in zip(found, times, strict=True)
    )
