"""Large files whose content is known: written past the page cache, and read again and compared."""

from __future__ import annotations

import errno
import mmap
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import RunError

BLOCK = 4 * 2**20
_STAMP = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One file that one thread writes, and a thread of another node reads.

    Attributes:
        path: where it is.
        seed: what its content is made from: each file has its own, which does not compress.
        blocks: its size in blocks of 4 MiB.
    """

    path: Path
    seed: int
    blocks: int

    def content(self) -> Iterator[mmap.mmap]:
        """Yield its blocks, always in the same memory, which is aligned as direct input and output need it.

        They differ in their first bytes, which say which block it is.
        """
        memory = mmap.mmap(-1, BLOCK)
        memory.write(random.Random(self.seed).randbytes(BLOCK))  # noqa: S311 - data, no secret
        for number in range(self.blocks):
            memory[:_STAMP] = number.to_bytes(_STAMP, "little")
            yield memory


def write(stream: Stream) -> dict[str, Any]:
    """Write a file to the storage, not only to memory.

    Returns:
        `seconds` spent in the writes and the final sync, and whether they were `direct`.
    """
    handle, direct = _open(stream.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        seconds = 0.0
        for block in stream.content():
            began = time.perf_counter()
            done = 0
            while done < BLOCK:
                done += os.write(handle, memoryview(block)[done:])
            seconds += time.perf_counter() - began
        began = time.perf_counter()
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return {"seconds": seconds + time.perf_counter() - began, "direct": direct}
    finally:
        os.close(handle)


def read(stream: Stream) -> dict[str, Any]:
    """Read a file, and compare it with what was written.

    Returns:
        `seconds` spent in the reads, whether they were `direct`, and `wrong`: what differs, in words; empty
        where nothing does.
    """
    handle, direct = _open(stream.path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        seconds, wrong, found = 0.0, [], mmap.mmap(-1, BLOCK)
        for number, block in enumerate(stream.content()):
            began = time.perf_counter()
            _fill(handle, found, number * BLOCK, stream.path)
            seconds += time.perf_counter() - began
            if found[:] != block[:]:
                wrong.append(_first_difference(found[:], block[:]) + number * BLOCK)
        return {"seconds": seconds, "direct": direct, "wrong": _told(stream, wrong)}
    finally:
        os.close(handle)


def _fill(handle: int, memory: mmap.mmap, offset: int, path: Path) -> None:
    done = 0
    while done < BLOCK:
        count = os.preadv(handle, [memoryview(memory)[done:]], offset + done)
        if count == 0:
            raise RunError("short_read", f"{path} ends at byte {offset + done:,}, before all that was written to it")
        done += count


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
