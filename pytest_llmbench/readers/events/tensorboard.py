"""Reads the scalars of TensorBoard's event files.

The `tensorboard` package would bring NumPy, gRPC and protobuf into every installation, and it treats a damaged record
as the end of the file; this reader reports all damage.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.readers.events.tfrecord import (
    FIXED32,
    FIXED64,
    LENGTH,
    Malformed,
    WireField,
    fields,
    records,
    signed,
)

# A name may stand before `events.out`, as in collections of several runs.
PATTERN = "*.tfevents.*"
_BEGUN = re.compile(r"tfevents\.(\d{1,15})\.", re.ASCII)
_MOST_REPORTED = 20
_FLOATS = {1: "f", 2: "d"}  # by TensorFlow's number of the type


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number with its tag, its step in the file and the Unix time of its writing; `record` counts from 1."""

    file: str
    record: int
    tag: str
    step: int
    value: float
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable record, counted from 1, with the reason."""

    file: str
    record: int
    reason: str


def event_files(source: Path | Iterable[Path]) -> list[Path]:
    """The event files of a folder, or the given files, by the time of their creation."""
    if isinstance(source, Path):
        source = source.glob(PATTERN) if source.is_dir() else [source]
    return sorted(source, key=lambda path: (_file_time(path), path.name))


def read_scalars(paths: Iterable[Path], tags: Collection[str]) -> Iterator[Scalar | Damage]:
    """Yield the scalars with these tags in the files' order, one record in memory at a time, and all damage.

    A file that was cut off, or becomes unreadable, yields its complete records and then the damage.
    """
    for path in paths:
        count = 0
        try:
            with path.open("rb") as file:
                for data in records(file):
                    count += 1
                    yield from _of_record(path.name, count, data, tags)
        except OSError as error:
            yield Damage(path.name, count + 1, f"cannot be read: {error.strerror or error}")


def collect(
    source: Path | Iterable[Path], tags: Collection[str], *, first: int, alike: Sequence[str] = ()
) -> Collected:
    """Collect the scalars with these tags by step; `first` and `alike` are attributes of `Collected`."""
    collected = Collected(first=first, alike=alike)
    for item in read_scalars(event_files(source), tags):
        collected.take(item)
    return collected


def _file_time(path: Path) -> int:
    match = _BEGUN.search(path.name)
    return int(match[1]) if match else 0


def _of_record(file: str, record: int, data: bytes | str, tags: Collection[str]) -> Iterator[Scalar | Damage]:
    if isinstance(data, str):
        yield Damage(file, record, data)
        return
    try:
        for tag, step, value, time in _parse_event(data, tags):
            yield Scalar(file, record, tag, step, value, time)
    except Malformed as error:
        yield Damage(file, record, str(error))


def _parse_event(data: bytes, tags: Collection[str]) -> Iterator[tuple[str, int, float, float | None]]:
    """Decode Event {1: wall_time, 2: step, 5: Summary {1: Value {1: tag, 2: simple_value, 8: tensor}}}."""
    event = list(fields(data))
    time = next((struct.unpack("<d", part.data)[0] for part in event if (part.number, part.kind) == (1, FIXED64)), None)
    time = time if time and math.isfinite(time) else None
    step = signed(next((part.integer for part in event if part.number == 2), 0))
    for value in _parts(event, 5, 1):
        content = list(fields(value))
        tag = b"".join(part.data for part in content if part.number == 1).decode("utf-8", errors="replace")
        if tag in tags:
            number = _scalar(content)
            if number is None or step < 0:
                raise Malformed(f"{tag} at step {step} is not a scalar of a step")
            yield tag, step, number, time


def _parts(message: Iterable[WireField], *path: int) -> Iterator[bytes]:
    """Yield the bytes under a path of field numbers."""
    for part in message:
        if part.number == path[0] and part.kind == LENGTH:
            if len(path) == 1:
                yield part.data
            else:
                yield from _parts(fields(part.data), *path[1:])


def _scalar(value: Iterable[WireField]) -> float | None:
    for part in value:
        if part.number == 2 and part.kind == FIXED32:
            return float(struct.unpack("<f", part.data)[0])
        if part.number == 8 and part.kind == LENGTH:
            return _parse_tensor(list(fields(part.data)))
    return None


def _parse_tensor(tensor: list[WireField]) -> float | None:
    """Decode TensorProto {1: dtype, 2: shape {2: dim {1: size}}, 4: content, 5: float_val, 6: double_val}."""
    code = _FLOATS.get(next((part.integer for part in tensor if part.number == 1), 0))
    sizes = [size.integer for dim in _parts(tensor, 2, 2) for size in fields(dim) if size.number == 1]
    if code is None or any(size != 1 for size in sizes):
        return None
    own = {"f": 5, "d": 6}[code]
    raw = b"".join(part.data for part in tensor if part.number in (4, own) and part.kind in (LENGTH, FIXED32, FIXED64))
    return float(struct.unpack(f"<{code}", raw)[0]) if len(raw) == struct.calcsize(code) else None


def whole(value: float | None) -> int | None:
    """A count that was written as a float; None for None and for a fraction, NaN or infinity."""
    return int(value) if value is not None and value.is_integer() else None


@dataclass(slots=True)
class Collected:
    """Values of event files for each step, by tag.

    Attributes:
        first: number of a run's first step in the files.
        alike: two tags for the same number.
        steps: by step, counted from 1.
        doubtful: steps in which the two tags differ.
        times: when the last number of a step was written, as Unix time.
    """

    first: int
    alike: Sequence[str] = ()
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    times: dict[int, float] = field(default_factory=dict)
    _restarted: str | None = None
    _unreadable: list[str] = field(default_factory=list)
    _unread: int = 0

    def take(self, item: Scalar | Damage) -> None:
        """Add a scalar, or count damage."""
        if isinstance(item, Damage):
            self._refuse(f"{item.file}:{item.record}: {item.reason}")
            return
        number = item.step + 1 - self.first
        if item.time is not None:
            self.times[number] = item.time
        values_of_step = self.steps.get(number)
        if values_of_step is None and number > next(reversed(self.steps), 0):
            values_of_step = self.steps[number] = {}
        if values_of_step is None or not _same(values_of_step.setdefault(item.tag, item.value), item.value):
            reason = f"{item.tag} of step {number} a second time, and not the same: a second run in the same folder"
            self._restarted = self._restarted or f"{item.file}:{item.record}: {reason}"
        elif len(values := {values_of_step[tag] for tag in self.alike if tag in values_of_step}) == 2 and not _same(
            *values
        ):
            self._refuse(f"{item.file}:{item.record}: {' and '.join(self.alike)} of step {number} are not the same")
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

    def _refuse(self, message: str) -> None:
        self._unread += 1
        if len(self._unreadable) < _MOST_REPORTED:
            self._unreadable.append(message)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))
