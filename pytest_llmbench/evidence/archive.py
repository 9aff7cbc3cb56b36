"""The file format of a bundle: a tar archive whose bytes follow from its content alone.

A bundle has three members: `attestation.dsse.json`, `manifest.json` and `session.tar.gz`, the last with the files that
the manifest lists, in its order. A reader names the member that must come next, so links and other headers are refused.
"""

import hashlib
import os
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from gzip import GzipFile
from pathlib import Path
from typing import IO

from pytest_llmbench.core.errors import LLMBenchError

ATTESTATION, MANIFEST, SESSION = "attestation.dsse.json", "manifest.json", "session.tar.gz"
_BLOCK, _PIECE = 512, 1 << 20
_END = bytes(2 * _BLOCK)


class BundleError(LLMBenchError):
    """A bundle that is refused: it was altered, or another program made it."""


BinaryFile = IO[bytes] | GzipFile


def header(name: str, size: int) -> bytes:
    """The one header that a member of that name and size may have: no owner, no time, no permission but reading."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def write_members(sink: BinaryFile, members: Mapping[str, Path]) -> dict[str, tuple[int, str]]:
    """Write an archive of these files; return the size and the SHA-256 of each.

    Raises BundleError if a file changes its size meanwhile, and OSError if reading or writing a file fails.
    """
    entries = {}
    for name, path in members.items():
        changed = f"{name} changed while it was bundled: wait for the end of the session"
        with path.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            sink.write(header(name, size))
            entries[name] = size, _copy(source, size, sink, changed)
            if source.read(1):
                raise BundleError(changed)
        sink.write(_padding(size))
    sink.write(_END)
    return entries


def read_member(source: BinaryFile, name: str, sink: IO[bytes] | None, most: int) -> tuple[int, str]:
    """Copy the next member, which must have that name; return its size and its SHA-256.

    Raises BundleError if it has another name, is cut, or is larger than `most` bytes.
    """
    block, size = source.read(_BLOCK), -1
    with suppress(tarfile.TarError, ValueError):
        size = tarfile.TarInfo.frombuf(block, "utf-8", "strict").size
    if size < 0 or block != header(name, size):
        raise BundleError(f"the file is not a bundle, or was altered at the header of {name}")
    if size > most:
        raise BundleError(f"{name} claims {size} bytes; at most {most} are read")
    digest = _copy(source, size, sink, f"the bundle is cut in {name}")
    _expect(source, _padding(size), name)
    return size, digest


def rewind(source: IO[bytes], size: int) -> IO[bytes]:
    """Go back from the end of an archive to the content of its last member, which has `size` bytes."""
    source.seek(-size - len(_padding(size)) - len(_END), os.SEEK_END)
    return source


def expect_end(source: BinaryFile, name: str) -> None:
    """Refuse an archive that goes on, or is cut. Raises BundleError."""
    _expect(source, _END, name)
    if source.read(1):
        raise BundleError(f"there are bytes after the end of {name}")


def _copy(source: BinaryFile, size: int, sink: BinaryFile | None, too_short: str) -> str:
    digest = hashlib.sha256()
    while size:
        piece = source.read(min(_PIECE, size))
        if not piece:
            raise BundleError(too_short)
        size -= len(piece)
        digest.update(piece)
        if sink is not None:
            sink.write(piece)
    return digest.hexdigest()


def _expect(source: BinaryFile, wanted: bytes, name: str) -> None:
    if source.read(len(wanted)) != wanted:
        raise BundleError(f"the bundle was altered at {name}: bytes between its files were changed")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)
