"""Reads the scalars of TensorBoard's event files, and compares them with the log of the same run.

The `tensorboard` package would bring NumPy, gRPC and protobuf into every installation, and it treats a damaged record
as the end of the file; this reader reports all damage. An event file is a sequence of records: the length (uint64,
little-endian), the masked CRC-32C of the length, the data, and the masked CRC-32C of the data. The data is a message of
protocol buffers, of which this module implements the small part that event files need.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pytest_llmbench.core.record.series import Step, StepSeries

# A name may stand before `events.out`, as in collections of several runs.
PATTERN = "*.tfevents.*"
_BEGUN = re.compile(r"tfevents\.(\d{1,15})\.", re.ASCII)
_MOST_REPORTED = 20


class Scalar(NamedTuple):
    """One number with its tag, its step in the file and the Unix time of its writing."""

    tag: str
    step: int
    value: float
    time: float | None = None


def event_files(source: Path | Iterable[Path]) -> list[Path]:
    """The event files of a folder, or the given files, by the time of their creation."""
    if isinstance(source, Path):
        source = source.glob(PATTERN) if source.is_dir() else [source]
    begun = {path: _BEGUN.search(path.name) for path in source}
    return sorted(begun, key=lambda path: (int(match[1]) if (match := begun[path]) else 0, path.name))


def collect(
    source: Path | Iterable[Path], tags: Collection[str], *, first: int, alike: Sequence[str] = ()
) -> Collected:
    """Collect the scalars with these tags by step, and all damage; `first` and `alike` are those of `Collected`.

    One record is in memory at a time. A file that was cut off, or becomes unreadable, has its complete records counted.
    """
    collected = Collected(first=first, alike=alike)
    for path in event_files(source):
        number = 0
        try:
            with path.open("rb") as file:
                for number, data in enumerate(records(file), 1):
                    collected.take(f"{path.name}:{number}", data, tags)
        except OSError as error:
            collected.refuse(f"{path.name}:{number + 1}", f"cannot be read: {error.strerror or error}")
    return collected


def scalars(data: bytes, tags: Collection[str]) -> Iterator[Scalar]:
    """Decode Event {1: wall_time, 2: step, 5: Summary {1: Value {1: tag, 2: simple_value}}}. Raises Malformed."""
    event = list(fields(data))
    time = next((struct.unpack("<d", part.data)[0] for part in event if (part.number, part.kind) == (1, FIXED64)), None)
    time = time if time and math.isfinite(time) else None
    step = signed(next((part.integer for part in event if part.number == 2), 0))
    summaries = (part.data for part in event if (part.number, part.kind) == (5, LENGTH))
    values = (part.data for summary in summaries for part in fields(summary) if (part.number, part.kind) == (1, LENGTH))
    for value in values:
        content = list(fields(value))
        tag = b"".join(part.data for part in content if part.number == 1).decode("utf-8", errors="replace")
        if tag in tags:
            number = next((part.data for part in content if (part.number, part.kind) == (2, FIXED32)), None)
            if number is None or step < 0:
                raise Malformed(f"{tag} at step {step} is not a scalar of a step")
            yield Scalar(tag, step, struct.unpack("<f", number)[0], time)


def whole(value: float | None) -> int | None:
    """A count that was written as a float; None for None and for a fraction, NaN or infinity."""
    return int(value) if value is not None and value.is_integer() else None


@dataclass(slots=True)
class Collected:
    """Values of event files for each step, by tag.

    `first` is the number of a run's first step in the files; `steps` counts from 1. `alike` are two tags for the same
    number, `doubtful` the steps in which they differ. `times` are Unix times of a step's last number.
    """

    first: int
    alike: Sequence[str] = ()
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    times: dict[int, float] = field(default_factory=dict)
    _restarted: str | None = None
    _unreadable: list[str] = field(default_factory=list)
    _unread: int = 0

    def take(self, where: str, data: bytes | str, tags: Collection[str]) -> None:
        """Add the scalars of a record, or count its damage."""
        if isinstance(data, str):
            self.refuse(where, data)
            return
        try:
            for item in scalars(data, tags):
                self._add(where, item)
        except Malformed as error:
            self.refuse(where, str(error))

    def refuse(self, where: str, reason: str) -> None:
        """Count an unreadable record, and keep the first ones for the report."""
        self._unread += 1
        if len(self._unreadable) < _MOST_REPORTED:
            self._unreadable.append(f"{where}: {reason}")

    def _add(self, where: str, item: Scalar) -> None:
        number = item.step + 1 - self.first
        if item.time is not None:
            self.times[number] = item.time
        of_step = self.steps.get(number)
        if of_step is None and number > next(reversed(self.steps), 0):
            of_step = self.steps[number] = {}
        if of_step is None or not _same(of_step.setdefault(item.tag, item.value), item.value):
            reason = f"{item.tag} of step {number} a second time, and not the same: a second run in the same folder"
            self._restarted = self._restarted or f"{where}: {reason}"
            return
        values = {of_step[tag] for tag in self.alike if tag in of_step}
        if len(values) == 2 and not _same(*values):
            self.refuse(where, f"{' and '.join(self.alike)} of step {number} are not the same")
            self.doubtful.add(number)

    def series(self, steps: tuple[Step, ...], **more: Any) -> StepSeries:
        """Build a series of the steps, with the unreadable records."""
        return StepSeries(
            steps=steps,
            unreadable=tuple(self._unreadable),
            unread=self._unread,
            restarted=self._restarted,
            written=(min(self.times.values()), max(self.times.values())) if self.times else None,
            **more,
        )


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """Allowed difference of a number between the log and the event files, which have seven digits.

    `name` is an attribute of `Step`, called `what` in messages. `least` is the rounding of the log's decimals, in the
    unit of the number, `share` that of its digits. `of_one` is True if the log has the value of the last step even in
    lines whose other numbers are means of several.
    """

    name: str
    what: str
    least: float = 0.0
    share: float = 1e-6
    of_one: bool = True


def disagreements(log: Sequence[Step], events: Sequence[Step], digits: Sequence[Digits]) -> Iterator[str]:
    """Yield the differences in the steps that are in both, of numbers that both have."""
    logged = {step.step: step for step in log}
    for event, number in product(events, digits):
        step = logged.get(event.step)
        one, other = getattr(step, number.name, None), getattr(event, number.name)
        if step is None or one is None or other is None or (step.interval > 1 and not number.of_one):
            continue
        alike = one == other or (math.isnan(one) and math.isnan(other))
        if not alike and not abs(one - other) <= number.least + number.share * abs(other):
            yield f"the {number.what} of step {step.step} is {one:g} in its log and {other:g} in its event file"


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
            here, end = file.tell(), file.seek(0, os.SEEK_END)
            if here + size > end:
                yield _CUT_OFF
                return
            file.seek(here + size)
            yield f"its {length} bytes are more than the {LONGEST} that are read"
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

    Raises Malformed if the message ends within a field, or has a field of a kind unknown in event files.
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
