"""Opening a bundle: it is refused, or every byte of it is what its signer wrote."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.bundle import archive
from pytest_llmbench.bundle.archive import MANIFEST, SESSION, BundleError
from pytest_llmbench.bundle.contents import Manifest
from pytest_llmbench.bundle.signing import key_id, open_envelope
from pytest_llmbench.bundle.statement import PREDICATE_TYPE, STATEMENT_TYPE
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# Of all files of a bundle together, and of its compressed part. A session of thousands of runs stays far below.
MOST_BYTES = 64 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedBundle:
    """A bundle whose bytes are as they were signed or, without a signature, as they were written.

    Attributes:
        folder: the session's folder in it; it is gone when the bundle is closed.
        manifest: its files.
        predicate: the result that it states.
        signer: id of the trusted key that signed it; None without one.
        unsigned: the reason why no trusted key has signed it; else empty.
    """

    folder: Path
    manifest: Manifest
    predicate: Mapping[str, Any]
    signer: str | None
    unsigned: str


@contextmanager
def opened(path: Path, keys: Sequence["Ed25519PublicKey"], most: int = MOST_BYTES) -> Iterator[OpenedBundle]:
    """Check a bundle byte by byte, and unpack it into a folder of its own.

    Args:
        path: its file.
        keys: the public keys that are trusted.
        most: the most bytes that its files may have together.

    Raises:
        BundleError: it was altered, is too large, or is not a bundle.
        ConfigError: its file cannot be read.
        OSError: there is no space to unpack it.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: the bundle cannot be read: {error.strerror}") from error
    with file:
        statement, key, unsigned = open_envelope(archive.read_whole(file, archive.ATTESTATION), keys)
        listed = archive.read_whole(file, MANIFEST)
        digests = _subjects(statement)
        if hashlib.sha256(listed).hexdigest() != digests[MANIFEST]:
            raise BundleError(f"{MANIFEST} was altered: it is not the file that was signed")
        manifest = Manifest.read(listed)
        total = sum(each.size for each in manifest.files)
        if total > most:
            raise BundleError(f"its files have {total} bytes, and at most {most} are read")
        digest, size = archive.digest_last(file, SESSION, most)
        if digest != digests[SESSION]:
            raise BundleError(f"{SESSION} was altered: it is not the file that was signed")
        with tempfile.TemporaryDirectory(prefix="llmbench-bundle-") as scratch:
            folder = Path(scratch)
            _unpack(archive.Unzipped(archive.rewind(file, size), size), manifest, folder)
            yield OpenedBundle(
                folder=folder,
                manifest=manifest,
                predicate=statement["predicate"],
                signer=key_id(key) if key is not None else None,
                unsigned=unsigned,
            )


def _subjects(statement: Mapping[str, Any]) -> dict[str, str]:
    kinds = (statement.get("_type"), statement.get("predicateType"))
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE) or not isinstance(statement.get("predicate"), dict):
        raise BundleError(f"it states {kinds[1]!r}, and not the result of a test")
    try:
        found = {str(each["name"]): str(each["digest"]["sha256"]) for each in statement["subject"]}
    except (KeyError, TypeError) as error:
        raise BundleError("its statement does not say what it is about") from error
    if found.keys() != {MANIFEST, SESSION}:
        raise BundleError(f"its statement is about {', '.join(found) or 'nothing'}, not {MANIFEST} and {SESSION}")
    return found


def _unpack(source: archive.Unzipped, manifest: Manifest, folder: Path) -> None:
    for each in manifest.files:
        target = folder / each.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            if archive.copy_member(source, each.path, each.size, file) != each.sha256:
                raise BundleError(f"{each.path} is not the file that {MANIFEST} lists")
    archive.expect_end(source, f"the last of {counted(len(manifest.files), 'file')}")
