"""Makes a bundle of a session's folder, and opens one after checking every byte against its signature."""

import gzip
import hashlib
import io
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from securesystemslib.signer import CryptoSigner, Key

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder, open_regular, replacing
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.evidence import archive
from pytest_llmbench.evidence.archive import ATTESTATION, MANIFEST, SESSION, BundleError
from pytest_llmbench.evidence.attestation import open_envelope, sign, signed_digests
from pytest_llmbench.evidence.certificate import make_certificate
from pytest_llmbench.evidence.contents import CERTIFICATE, BundledFile, Manifest, find_contents, find_secrets
from pytest_llmbench.evidence.recorded import RecordedSession, make_predicate, read_session

# Limit for all files of a bundle together, and for its compressed part. A session of thousands of runs stays far below.
MOST_BYTES = 64 << 30
# Up to the first number of bytes they may compress as well as they can; logs and records compress 5 to 40 times.
_ALWAYS_READ, _MOST_RATIO = 1 << 30, 200
_LARGEST_ENVELOPE, _LARGEST_MANIFEST = 4 << 20, 256 << 20
_MOST_SHOWN = 10


def make_bundle(
    folder: Path, target: Path, signer: CryptoSigner | None, harmless_files: Collection[str] = ()
) -> RecordedSession:
    """Write the bundle of a session to `target`, in one step. The same folder and key give the same bytes.

    Without a signer it has no signature. `harmless_files` are the names, in the bundle, of files without a secret that
    look as if they had one. Raises ConfigError if the folder is not a session's, still changes, or has
    a secret in it, and OSError if a file cannot be read or written.
    """
    session = read_session(folder)
    places, left_out, replayed = find_contents(folder, session.runs)
    if unknown_files := sorted(set(harmless_files) - set(places)):
        raise ConfigError(f"--no-secret {unknown_files[0]}: no such file in the bundle; name it as it was reported")
    if secrets := list(find_secrets(places, folder, harmless_files)):
        shown = "\n".join(secrets[:_MOST_SHOWN])
        raise ConfigError(
            f"{len(secrets)} files have a secret in them, or what looks like one, and nothing was bundled. Look at the "
            f"first line of each. Revoke a real secret. For a harmless text, add --no-secret FILE:\n{shown}"
        )
    key_id = None if signer is None else str(signer.public_key.keyid)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / CERTIFICATE).write_text(make_certificate(session, key_id), encoding="utf-8")
        places = dict(sorted({**places, CERTIFICATE: scratch / CERTIFICATE}.items()))
        # Without a name or a time in it.
        with (scratch / SESSION).open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped:
            written = archive.write_members(zipped, places)
        files = tuple(BundledFile(path=path, size=size, sha256=sha256) for path, (size, sha256) in written.items())
        manifest = Manifest(session=session.id, llmbench=__version__, files=files, left_out=left_out, replayed=replayed)
        (scratch / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
        digests = {part: _sha256(scratch / part) for part in (MANIFEST, SESSION)}
        envelope = sign(make_predicate(session, {file.path: file.sha256 for file in files}), digests, signer)
        (scratch / ATTESTATION).write_bytes(envelope)
        make_folder(target.absolute().parent)
        with replacing(target) as whole, whole.open("wb") as sink:
            archive.write_members(sink, {part: scratch / part for part in (ATTESTATION, MANIFEST, SESSION)})
    return session


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedBundle:
    """A bundle whose bytes are as a trusted key, with the id `signer`, signed them; closing it removes its folder."""

    folder: Path
    manifest: Manifest
    predicate: Mapping[str, Any]
    signer: str


@contextmanager
def open_bundle(path: Path, keys: Sequence[Key], most: int = MOST_BYTES) -> Iterator[OpenedBundle]:
    """Check a bundle that a trusted key signed byte by byte, and unpack it, `most` bytes at most, into its own folder.

    Raises BundleError if no trusted key signed it, which is checked first, or it was altered, is too large, or is not a
    bundle, ConfigError if its file cannot be read, and OSError without space to unpack it.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise ConfigError(f"{path}: the bundle cannot be read: {error.strerror}") from error
    with file, tempfile.TemporaryDirectory(prefix="llmbench-bundle-") as folder:
        envelope, listed = io.BytesIO(), io.BytesIO()
        archive.read_member(file, ATTESTATION, envelope, _LARGEST_ENVELOPE)
        statement, signer, unsigned = open_envelope(envelope.getvalue(), keys)
        if signer is None:
            raise BundleError(f"no trusted key has signed it: {unsigned}; nothing of it was unpacked")
        signed = signed_digests(statement)
        _, digest = archive.read_member(file, MANIFEST, listed, _LARGEST_MANIFEST)
        if digest != signed[MANIFEST]:
            raise BundleError(f"{MANIFEST} was altered: it is not the file that was signed")
        manifest = Manifest.read(listed.getvalue())
        total = sum(entry.size for entry in manifest.files)
        if total > most:
            raise BundleError(f"its files have {total} bytes, and at most {most} are read")
        size, digest = archive.read_member(file, SESSION, None, most)
        if digest != signed[SESSION]:
            raise BundleError(f"{SESSION} was altered: it is not the file that was signed")
        if total > max(_ALWAYS_READ, _MOST_RATIO * size):
            raise BundleError(f"its {size} bytes would unpack to {total}, more than {_MOST_RATIO} times as many")
        archive.expect_end(file, "the bundle")
        unpack(archive.rewind(file, size), manifest, Path(folder))
        predicate = MessageToDict(statement.pb.predicate)
        yield OpenedBundle(folder=Path(folder), manifest=manifest, predicate=predicate, signer=signer)


def unpack(zipped: Any, manifest: Manifest, folder: Path) -> None:
    """Unpack the files of a manifest, and never more bytes than it lists.

    Raises BundleError if the archive has other content.
    """
    try:
        with gzip.GzipFile(fileobj=zipped) as source:
            for entry in manifest.files:
                target = folder / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as sink:
                    if archive.read_member(source, entry.path, sink, entry.size) != (entry.size, entry.sha256):
                        raise BundleError(f"{entry.path} is not the file that {MANIFEST} lists")
            archive.expect_end(source, f"the last of {counted(len(manifest.files), 'file')}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BundleError(f"{SESSION} cannot be decompressed: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
