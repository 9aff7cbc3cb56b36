"""Curves: the time of one collective operation by message size, from any source."""

from collections.abc import Iterator

from pydantic import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt

from pytest_llmbench.core.schema import Strict

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
# Those that deal in equal parts, one of each rank or for each rank. Their size is that of all parts.
IN_PARTS = frozenset({"all_gather", "reduce_scatter", "alltoall"})
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# A part is a whole number of these, bytes, so that a size may come out a little smaller than was asked for.
ALIGNMENT = 16


def busbw_factor(collective: str, ranks: int) -> float:
    """Factor from algbw to busbw, the speed of the slowest link, as nccl-tests defines both.

    Raises ValueError for any other one than `COLLECTIVES`.
    """
    if collective == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if collective in IN_PARTS:
        return (ranks - 1) / ranks
    if collective in COLLECTIVES:
        return 1.0
    raise ValueError(f"{collective!r} is not one of {', '.join(COLLECTIVES)}")


def size_name(size: int) -> str:
    """A size in bytes for people and names, exactly: `8GiB`, `8B`, or `1000B` where no larger unit fits."""
    unit = next((at for at in range(len(_UNITS) - 1, 0, -1) if size and size % 1024**at == 0), 0)
    return f"{size // 1024**unit}{_UNITS[unit]}"


def asked_size(collective: str | None, size: int, ranks: int) -> int:
    """The power of two that was asked for, where the ranks' equal parts came out as `size`; else `size` itself."""
    power = 1 << max(0, size - 1).bit_length()
    return power if collective in IN_PARTS and power - size < ALIGNMENT * ranks else size


class Timing(Strict):
    """One operation at one size, out of place or in place."""

    time_us: NonNegativeFloat
    """Duration of the operation, in us."""
    algbw: NonNegativeFloat
    """Algorithm bandwidth: size divided by time, in GB/s."""
    busbw: NonNegativeFloat
    """Bus bandwidth: `algbw` made comparable with the speed of the links, in GB/s."""
    wrong: NonNegativeInt | None = None
    """Number of elements with a wrong value, over all ranks and checked iterations; None where nothing was checked."""


def timing(collective: str, size: int, ranks: int, time_us: float, wrong: int | None) -> Timing:
    """Make the bandwidths of a time. GB/s is 1000 bytes per us."""
    algbw = size / 1e3 / time_us
    return Timing(time_us=time_us, algbw=algbw, busbw=algbw * busbw_factor(collective, ranks), wrong=wrong)


class Point(Strict):
    """One operation at one size."""

    size: NonNegativeInt
    """Larger of the bytes that a rank sends and receives."""
    count: NonNegativeInt
    """Number of elements by nccl-tests' rule: those of one rank's part, where the operation deals in parts."""
    dtype: str
    """Data type of the elements, such as `float32`."""
    redop: str | None = None
    """Reduction of the elements, such as `sum`; None for an operation that reduces nothing."""
    out_of_place: Timing | None = None
    """Timing with separate buffers; None if the source lacks it."""
    in_place: Timing | None = None
    """Timing with one buffer for both; None if the source lacks it."""

    @property
    def timings(self) -> Iterator[Timing]:
        """Both, as far as they are there."""
        yield from (timing for timing in (self.out_of_place, self.in_place) if timing is not None)

    @property
    def timing(self) -> Timing | None:
        """The values to compare with references: out of place, or in place if there is no other."""
        return self.out_of_place or self.in_place

    @property
    def wrong(self) -> int | None:
        """Wrong elements of both; None where neither was checked."""
        checked = [timing.wrong for timing in self.timings if timing.wrong is not None]
        return sum(checked) if checked else None


class Curve(Strict):
    """One operation over all sizes."""

    collective: str | None
    """One of `COLLECTIVES`, or another name that nccl-tests gives itself; None where a log has none."""
    points: tuple[Point, ...]
    """Points in the order measured."""
    ranks: PositiveInt | None = None
    """Number of ranks that took part; None where a log lacks it."""
    nodes: PositiveInt | None = None
    """Number of nodes that took part; None where a log lacks it."""
    gpus: NonNegativeInt | None = None
    """Number of GPUs that took part; None where a log lacks it."""
    complete: bool
    """Whether the curve was measured to its end."""
    unreadable: NonNegativeInt = 0
    """Number of lines that look like a point and cannot be read as one."""
    out_of_bounds: NonNegativeInt | None = None
    """Number of points with wrong values, as nccl-tests counts them; None where it gives none."""
    average_busbw: FiniteFloat | None = None
    """Mean bus bandwidth over all points as nccl-tests prints it, in GB/s; None where it gives none."""
    doubt: str | None = None
    """Contradictions within the source, in words; None without any."""

    def at(self, size: int) -> Point | None:
        """The point of a size, bytes; the slowest of several, and None for none."""
        return min((point for point in self.points if point.size == size), key=_busbw, default=None)

    @property
    def peak(self) -> Point | None:
        """The point with the highest busbw."""
        return max(self.points, key=_busbw, default=None)

    @property
    def wrong(self) -> tuple[Point, ...]:
        """The points with wrong values."""
        return tuple(point for point in self.points if point.wrong)


def _busbw(point: Point) -> float:
    return point.timing.busbw if point.timing is not None else 0.0
