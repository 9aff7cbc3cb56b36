"""Large files whose content is known: written past the page cache, and read again and compared.

Parallel streams are timed from the begin of the first to the end of the last: a sum of the times in their calls would
ignore that other streams had the storage for themselves meanwhile.
"""

import ctypes
import errno
import mmap
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import RunError

BLOCK = 4 * 2**20
_STAMP = 16
# Without the interpreter's lock, which a comparison in Python would keep other streams waiting for.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(kw_only=True, slots=True)
class Stream:
    """One file that one thread writes, and a thread of another node reads.

    Attributes:
        seed: seed of its content: each file has its own, which does not compress.
        blocks: its size in blocks of 4 MiB.
        memory: a block of the content, aligned as direct input and output need it; made with the stream, which takes
            20 ms.
    """

    path: Path
    seed: int
    blocks: int
    memory: mmap.mmap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.memory = mmap.mmap(-1, BLOCK)
        self.memory.write(random.Random(self.seed).randbytes(BLOCK))  # noqa: S311 - data, no secret

    def content(self) -> Iterator[mmap.mmap]:
        """Yield its blocks, always in the same memory; they differ in their first bytes, which say which one it is."""
        for number in range(self.blocks):
            self.memory[:_STAMP] = number.to_bytes(_STAMP, "little")
            yield self.memory


def write(stream: Stream) -> dict[str, Any]:
    """Write a file to the storage, not only to memory.

    Returns:
        When it `began` and `ended` by the process's clock, seconds, the final sync with it, and whether the writes were
        `direct`.
    """
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
    """Read a file, and compare it with what was written.

    Returns:
        When it `began` and `ended`, as of `write`, whether the reads were `direct`, and `wrong`: the differences, in
            words; empty if there are none.
    """
    handle, direct = _open(stream.path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        wrong, found = list[int](), mmap.mmap(-1, BLOCK)
        began = time.perf_counter()
        for number, block in enumerate(stream.content()):
            _fill(handle, found, number * BLOCK, stream.path)
            if _memcmp(_address(found), _address(block), BLOCK):
                wrong.append(_first_difference(found[:], block[:]) + number * BLOCK)
        return {"began": began, "ended": time.perf_counter(), "direct": direct, "wrong": _told(stream, wrong)}
    finally:
        os.close(handle)


def _fill(handle: int, memory: mmap.mmap, offset: int, path: Path) -> None:
    done = 0
    while done < BLOCK:
        count = os.preadv(handle, [memoryview(memory)[done:]], offset + done)
        if count == 0:  #: error short_read: Check: a file ends before all that was written to it
            raise RunError("short_read", f"{path} ends at byte {offset + done:,}, before all that was written to it")
        done += count


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _first_difference(found: bytes, wanted: bytes) -> int:
    return next(i for i, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other)


def _told(stream: Stream, places: list[int]) -> str:
    if not places:
        return ""
    return f"{stream.path.name}: {len(places)} of {stream.blocks} blocks differ, the first at byte {places[0]:,}"


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file past the page cache, where the file system can; return the handle, and whether it could."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # A file system may have created the file before it refused.
    return os.open(path, flags & ~os.O_EXCL, 0o600), False
