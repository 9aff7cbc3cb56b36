"""A shared file system under the load of all nodes at once: writes, reads of a neighbour's files, and metadata.

Large files have known content: they are written past the page cache, and read again and compared. Parallel streams are
timed from the start of the first to the end of the last, as each of them slows the others down.
"""

import ctypes
import errno
import mmap
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.file_barrier import FileBarrier
from pytest_llmbench.workloads.rank.probe import ProbeLog

BLOCK = 4 * 2**20
_STAMP = 16  # bytes at the start of a block, with its number
_RESERVE = 1.1  # free space that is required, as a multiple of what is written
# Another rank may remove the parent folder between two attempts as often.
_TRIES = 100
# It releases the interpreter's lock; a comparison in Python would block the other streams.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class StorageLoad(ProbeAnswer):
    """The load of one node, while all others had the same."""

    bytes: PositiveInt  # written, and read
    write_s: PositiveFloat
    read_s: PositiveFloat
    direct: bool  # whether all of it went past the page cache
    wrong: tuple[str, ...]  # differences between written and read bytes, in words
    read_from: NonNegativeInt  # the rank whose files this node read
    files: PositiveInt  # small files
    create_s: PositiveFloat
    stat_s: PositiveFloat
    unlink_s: PositiveFloat


def measure(context: RankContext, log: ProbeLog) -> StorageLoad:
    """Measure how fast this node writes, reads and handles small files while all others do the same.

    One rank per node. The config: `folder`, shared by all nodes; `blocks` of 4 MiB in each of a node's `streams` files;
    small `files` of each node; `timeout_s`, the longest wait for the other nodes at each point. Raises RunError
    `no_space` before it writes, `short_read`, or `left_alone` if another node failed, and OSError if the file system
    refuses.
    """
    config, rank = context.config, context.rank
    parent = Path(config["folder"]) / f"llmbench-storage-{config['name']}"
    neighbour = (rank + 1) % context.world_size
    count: int = config["streams"]
    size = count * config["blocks"] * BLOCK

    def streams(of: int) -> list[Stream]:
        paths = [parent / f"node-{of:05d}" / f"data-{i}" for i in range(count)]
        return [Stream(path=path, seed=of * count + i, blocks=config["blocks"]) for i, path in enumerate(paths)]

    meeting = context.folder / layout.MEETING
    with (
        FileBarrier(meeting, rank, range(context.world_size), config["timeout_s"]) as barrier,
        _folder(parent, parent / f"node-{rank:05d}") as own,
    ):

        def step(what: str) -> None:
            log.phase(what)
            barrier.wait(what)

        _check_space(own, size * context.world_size)
        own_files, others_files = streams(rank), streams(neighbour)
        step("write")
        written = _run_at_once(write, own_files)
        step("read")
        read_back = _run_at_once(read, others_files)
        answer = StorageLoad(
            bytes=size, write_s=_span(written), read_s=_span(read_back),
            direct=all(stream["direct"] for stream in (*written, *read_back)),
            wrong=tuple(stream["wrong"] for stream in read_back if stream["wrong"]), read_from=neighbour,
            files=config["files"], **_time_metadata(own, parent / f"node-{neighbour:05d}", config["files"], step),
        )  # fmt: skip
        step("clean up")  # the neighbour reads this node's files until here
    return answer


@contextmanager
def _folder(parent: Path, own: Path) -> Iterator[Path]:
    """This rank's folder for the time of the `with` block; the last rank removes the parent, too."""
    _make_folder(own)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):
            parent.rmdir()


def _make_folder(own: Path) -> None:
    """Make a folder and its parent, which another rank may remove, still empty, in between."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            own.mkdir(parents=True)
            return
    own.mkdir(parents=True)


def _check_space(folder: Path, needed: int) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < _RESERVE * needed:
        raise RunError(
            "no_space",  #: error no_space: Check: too little is free on the file system that is to be measured
            f"{folder} has {free / 1e9:.3g} GB free, and all nodes together need {_RESERVE * needed / 1e9:.3g} GB: "
            "nothing was written; make space, or set a smaller size",
        )


def _run_at_once(do: Callable[["Stream"], dict[str, Any]], streams: list["Stream"]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(do, streams))


def _span(streams: list[dict[str, Any]]) -> float:
    return float(max(stream["ended"] for stream in streams) - min(stream["began"] for stream in streams))


def _time_metadata(own: Path, other: Path, count: int, step: Callable[[str], None]) -> dict[str, float]:
    """Seconds for creating files, for looking up the neighbour's, which miss all caches here, and for removing them."""
    seconds = {}
    for what, do, folder in (("create", _create, own), ("stat", os.stat, other), ("unlink", os.unlink, own)):
        paths = [f"{folder}/small-{number:06d}" for number in range(count)]
        step(what)
        began = time.perf_counter()
        for path in paths:
            do(path)
        seconds[f"{what}_s"] = time.perf_counter() - began
    return seconds


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


@dataclass(kw_only=True, slots=True)
class Stream:
    """One file that one thread writes, and a thread of another node reads."""

    path: Path
    seed: int  # seed of its content: each file has its own, which is incompressible
    blocks: int  # its size in blocks of 4 MiB
    # A block of the content, aligned for direct input and output; filling it takes 20 ms.
    memory: mmap.mmap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.memory = mmap.mmap(-1, BLOCK)
        self.memory.write(random.Random(self.seed).randbytes(BLOCK))  # noqa: S311 - data, no secret

    def content(self) -> Iterator[mmap.mmap]:
        """Yield its blocks, always in the same memory; their first bytes hold their number."""
        for number in range(self.blocks):
            self.memory[:_STAMP] = number.to_bytes(_STAMP, "little")
            yield self.memory


def write(stream: Stream) -> dict[str, Any]:
    """Write a file to the storage, with a final sync; `began` and `ended` are by the process's clock, seconds."""
    handle, direct = _open(stream.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        began = time.perf_counter()
        for block in stream.content():
            done = 0
            while done < BLOCK:
                done += os.write(handle, memoryview(block)[done:])
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return {"began": began, "ended": time.perf_counter(), "direct": direct}
    finally:
        os.close(handle)


def read(stream: Stream) -> dict[str, Any]:
    """Read a file, and compare it with what was written; `wrong` are the differences in words, empty without one."""
    handle, direct = _open(stream.path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        places, memory = list[int](), mmap.mmap(-1, BLOCK)
        began = time.perf_counter()
        for number, block in enumerate(stream.content()):
            _read_block(handle, memory, number * BLOCK, stream.path)
            if _memcmp(_address(memory), _address(block), BLOCK):
                first = next(i for i, (one, other) in enumerate(zip(memory[:], block[:], strict=True)) if one != other)
                places.append(first + number * BLOCK)
        ended, wrong = time.perf_counter(), ""
        if places:
            wrong = (
                f"{stream.path.name}: {len(places)} of {stream.blocks} blocks differ, the first at byte {places[0]:,}"
            )
        return {"began": began, "ended": ended, "direct": direct, "wrong": wrong}
    finally:
        os.close(handle)


def _read_block(handle: int, memory: mmap.mmap, offset: int, path: Path) -> None:
    done = 0
    while done < BLOCK:
        count = os.preadv(handle, [memoryview(memory)[done:]], offset + done)
        if count == 0:  #: error short_read: Check: a file ends before all that was written to it
            raise RunError("short_read", f"{path} ends at byte {offset + done:,}, before all that was written to it")
        done += count


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file past the page cache if the file system allows it; return the handle, and whether it does."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # A file system may have created the file before it refused.
    return os.open(path, flags & ~os.O_EXCL, 0o600), False
