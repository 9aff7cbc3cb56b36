"""Making a bundle of a session's folder."""

import hashlib
import io
import tempfile
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pytest_llmbench import __version__
from pytest_llmbench.bundle import archive
from pytest_llmbench.bundle.certificate import make_certificate
from pytest_llmbench.bundle.contents import CERTIFICATE, Manifest, find_contents, measure, secrets_in
from pytest_llmbench.bundle.recorded import RecordedSession, read_session
from pytest_llmbench.bundle.signing import sign
from pytest_llmbench.bundle.statement import make_statement
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import make_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MOST_SHOWN = 10


def make_bundle(
    folder: Path, target: Path, key: "Ed25519PrivateKey | None", looked_at: Collection[str] = ()
) -> RecordedSession:
    """Write the bundle of a session. The same folder and key give the same bytes.

    Args:
        folder: that of the session.
        target: the file to write; one that is there is replaced as soon as the new one is whole.
        key: the key to sign with; without one, nobody vouches for the bundle.
        looked_at: files, as they are named in the bundle, that look as if they had a secret in them and have none.

    Raises:
        ConfigError: it is no session's folder, still changes, or has a secret in it.
        OSError: a file cannot be read or written.
    """
    session = read_session(folder)
    contents = find_contents(folder, session.runs)
    if unknown_files := sorted(set(looked_at) - set(contents.paths)):
        raise ConfigError(f"--no-secret {unknown_files[0]}: no such file in the bundle; name it as it was reported")
    if told := list(secrets_in(contents, folder, looked_at)):
        shown = "\n".join(told[:_MOST_SHOWN])
        raise ConfigError(
            f"{len(told)} files have a secret in them, or what looks like one, and nothing was bundled. Look at the "
            f"first line of each. If it is one, revoke it. If it is none, add --no-secret FILE:\n{shown}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / CERTIFICATE
        page.write_text(make_certificate(session), encoding="utf-8")
        paths = dict(sorted({**contents.paths, CERTIFICATE: page}.items()))
        entries = {name: measure(name, path) for name, path in paths.items()}
        manifest = Manifest(
            session=session.id, llmbench=__version__, files=tuple(entries.values()), left_out=contents.left_out,
            replayed=contents.replayed,
        )  # fmt: skip
        zipped = Path(scratch) / archive.SESSION
        with archive.compressed(zipped) as sink:
            opened = ((each.path, each.size, partial(_file, paths[each.path])) for each in manifest.files)
            archive.write_members(sink, opened)
        listed = (manifest.model_dump_json(indent=1) + "\n").encode()
        inner = measure(archive.SESSION, zipped)
        digests = {archive.MANIFEST: hashlib.sha256(listed).hexdigest(), archive.SESSION: inner.sha256}
        envelope = sign(make_statement(session, digests, entries), key)
        make_folder(target.absolute().parent)
        whole = target.with_name(f".{target.name}.part")
        with whole.open("wb") as file:
            archive.write_members(
                file,
                [
                    (archive.ATTESTATION, len(envelope), partial(_memory, envelope)),
                    (archive.MANIFEST, len(listed), partial(_memory, listed)),
                    (archive.SESSION, inner.size, partial(_file, zipped)),
                ],
            )
        whole.replace(target)
    return session


def _memory(content: bytes) -> BinaryIO:
    return io.BytesIO(content)


def _file(path: Path) -> BinaryIO:
    return path.open("rb")
