"""The file format of a bundle: a tar archive whose every byte follows from its content, so that no other is accepted.

A bundle has three members: `attestation.dsse.json`, `manifest.json` and `session.tar.gz`, the last with the files that
the manifest lists, in its order. Readers here do not search for members: they know which bytes must come next.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from pytest_llmbench.core.errors import LLMBenchError

ATTESTATION, MANIFEST, SESSION = "attestation.dsse.json", "manifest.json", "session.tar.gz"
_BLOCK, _PIECE = 512, 1 << 20
_END = bytes(2 * _BLOCK)
# Members that are read into memory whole.
_LARGEST = {ATTESTATION: 4 << 20, MANIFEST: 256 << 20}


class BundleError(LLMBenchError):
    """A bundle that is refused: it was altered, or another program made it."""


class Readable(Protocol):
    """Anything bytes come from."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; an empty text at the end."""


def header(name: str, size: int) -> bytes:
    """The one header that a member of that name and size may have: no owner, no time, no permission but reading."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def write_members(sink: BinaryIO, members: Iterable[tuple[str, int, Callable[[], BinaryIO]]]) -> None:
    """Write an archive: each member by its name, its size, and a function that opens its content.

    Raises:
        BundleError: a content has another size.
    """
    for name, size, content in members:
        sink.write(header(name, size))
        left = size
        with content() as source:
            while piece := source.read(min(_PIECE, left) if left else 1):
                if len(piece) > left:
                    raise BundleError(f"{name} grew while it was bundled: wait for the end of the session")
                sink.write(piece)
                left -= len(piece)
        if left:
            raise BundleError(f"{name} shrank while it was bundled: wait for the end of the session")
        sink.write(_padding(size))
    sink.write(_END)


@contextmanager
def compressed(path: Path) -> Iterator[BinaryIO]:
    """Write a file compressed, without a name or a time in it."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped:
        yield zipped  # type: ignore[misc]  # it is a file of bytes


def read_whole(source: Readable, name: str) -> bytes:
    """Read the next member, which must be this one, and small.

    Raises:
        BundleError: another member comes next, or it is too large.
    """
    size = _size(source, name)
    if size > _LARGEST[name]:
        raise BundleError(f"{name} claims {size} bytes; at most {_LARGEST[name]} are read")
    content = _exactly(source, size, name)
    _expect(source, _padding(size), name)
    return content


def digest_last(source: BinaryIO, name: str, most: int) -> tuple[str, int]:
    """Read the next member, which must be this one and the last; return its SHA-256 and its size.

    Raises:
        BundleError: another member comes next, it is larger than `most` bytes, or anything follows it.
    """
    size = _size(source, name)
    if size > most:
        raise BundleError(f"{name} claims {size} bytes; at most {most} are read")
    digest = hashlib.sha256()
    for piece in _pieces(source, size, name):
        digest.update(piece)
    _expect(source, _padding(size), name)
    expect_end(source, "the bundle")
    return digest.hexdigest(), size


def rewind(source: BinaryIO, size: int) -> BinaryIO:
    """Go back from the end of an archive to the beginning of its last member, which has `size` bytes."""
    source.seek(-size - len(_padding(size)) - len(_END), os.SEEK_END)
    return source


def copy_member(source: Readable, name: str, size: int, target: BinaryIO) -> str:
    """Copy the next member, which must have that name and size; return its SHA-256.

    Raises:
        BundleError: it is another one.
    """
    _expect(source, header(name, size), name)
    digest = hashlib.sha256()
    for piece in _pieces(source, size, name):
        digest.update(piece)
        target.write(piece)
    _expect(source, _padding(size), name)
    return digest.hexdigest()


def expect_end(source: Readable, name: str) -> None:
    """See that an archive ends here.

    Raises:
        BundleError: it does not.
    """
    _expect(source, _END, name)
    if source.read(1):
        raise BundleError(f"there are bytes behind the end of {name}")


class Unzipped:
    """The content of the next bytes of a file, which are compressed: never more of it than was asked for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self._zip = zlib.decompressobj(wbits=31)

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; an empty text at the end.

        Raises:
            BundleError: it is not compressed, cut, or something follows its end.
        """
        try:
            while not self._zip.eof:
                fed = self._zip.unconsumed_tail or self._more()
                if piece := self._zip.decompress(fed, size):
                    return piece
                if not fed and not self._zip.eof:
                    raise BundleError(f"{SESSION} is cut")
        except zlib.error as error:
            raise BundleError(f"{SESSION} cannot be decompressed: {error}") from error
        if self._zip.unused_data or self._more():
            raise BundleError(f"there are bytes behind the end of {SESSION}")
        return b""

    def _more(self) -> bytes:
        piece = self._file.read(min(_PIECE, self._left))
        self._left -= len(piece)
        return piece


def _size(source: Readable, name: str) -> int:
    """The size in the next header, which must be the one that this name and size have."""
    try:
        block = _exactly(source, _BLOCK, name)
    except BundleError as error:
        raise BundleError(f"the file is not a bundle, or it ends before {name}") from error
    try:
        size = tarfile.TarInfo.frombuf(block, "utf-8", "strict").size
    except (tarfile.TarError, ValueError) as error:
        raise BundleError(
            f"the file is not a bundle, or it was altered: a header of {name} is expected, and something else is there"
        ) from error
    # Of 8 GiB and more, the size is in a header of its own before it: none is written for so much.
    if size < 0 or block != header(name, size):
        raise BundleError(
            f"the file is not a bundle, or it was altered: the header of {name} differs from the only possible one"
        )
    return size


def _pieces(source: Readable, size: int, name: str) -> Iterator[bytes]:
    while size:
        piece = source.read(min(_PIECE, size))
        if not piece:
            raise BundleError(f"the bundle is cut in {name}")
        size -= len(piece)
        yield piece


def _exactly(source: Readable, size: int, name: str) -> bytes:
    return b"".join(_pieces(source, size, name))


def _expect(source: Readable, wanted: bytes, name: str) -> None:
    if _exactly(source, len(wanted), name) != wanted:
        raise BundleError(f"the bundle was altered at {name}: bytes between its files are not those they must be")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)
