"""Keys, and the signed statement of a bundle: an in-toto statement with the predicate "test result" in a DSSE envelope.

https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.json_format import ParseError as StatementError
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import CryptoSigner, Key, Signature, SSlibKey

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, make_folder, read_at_most
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.evidence.archive import MANIFEST, SESSION, BundleError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
_LARGEST_KEY = 1 << 16


def make_key(path: Path) -> Path:
    """Write a new private key, readable by this user alone; return the file of its public key, `.pub.pem`, next to it.

    Raises ConfigError if one of the files exists already, and OSError if writing one fails.
    """
    public = path.with_name(f"{path.name.removesuffix('.pem')}.pub.pem")
    key = Ed25519PrivateKey.generate()
    public_text = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    make_folder(path.absolute().parent)
    for file in (path, public):
        if file.exists():
            raise ConfigError(f"{file} exists already: a key is never overwritten; give another --output")
    for file, text, mode in ((path, CryptoSigner(key).private_bytes, PRIVATE), (public, public_text, 0o644)):
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as new:
            new.write(text)
    return public


def read_private_key(path: Path) -> CryptoSigner:
    """Read a private key to sign with.

    Raises ConfigError if others may read it, it is encrypted, or it is not an ed25519 key in PEM.
    """
    key = _read_key(path, partial(pem.load_pem_private_key, password=None), Ed25519PrivateKey, "private")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}, and consider whether it is still secret")
    return CryptoSigner(key)


def read_public_key(path: Path) -> SSlibKey:
    """Read a public key. Raises ConfigError: it is not an ed25519 public key in PEM."""
    return SSlibKey.from_crypto(_read_key(path, pem.load_pem_public_key, Ed25519PublicKey, "public"))


def _read_key(path: Path, load: Callable[[bytes], Any], kind: Any, word: str) -> Any:
    try:
        key = load(read_at_most(path, _LARGEST_KEY))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} must be a {word} key in PEM without a passphrase: {error}; see llmbench keygen"
        ) from error
    if not isinstance(key, kind):
        raise ConfigError(f"{path} is a key of another kind than ed25519; llmbench keygen makes one")
    return key


def sign(predicate: Mapping[str, Any], digests: Mapping[str, str], signer: CryptoSigner | None) -> bytes:
    """Write the envelope of a statement, without a signature if there is no signer.

    `digests` are the SHA-256 of the manifest and of the session's archive, by name.
    """
    subjects = [ResourceDescriptor(name=name, digest={"sha256": digests[name]}).pb for name in (MANIFEST, SESSION)]
    statement = Statement(subjects, PREDICATE_TYPE, dict(predicate))
    statement.validate()
    payload = json.dumps(MessageToDict(statement.pb), sort_keys=True, ensure_ascii=False).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    if signer is not None:
        envelope.sign(signer)
    return _written(envelope)


def open_envelope(text: bytes, keys: Sequence[Key]) -> tuple[Statement, str | None, str]:
    """Read an envelope: its statement, the id of the trusted key that signed it, or the reason why no trusted key did.

    Raises BundleError if `sign` does not write such envelopes, or the signature is not the key's.
    """
    try:
        envelope = Envelope.from_dict(read_json(text))
        statement = Statement([], "", {})
        ParseDict(read_json(envelope.payload), statement.pb)
        statement.validate()
    except (KeyError, TypeError, AttributeError, ValueError, FormatError, StatementError) as error:
        raise BundleError(f"the envelope of the signature was altered: {error}") from error
    # The signature covers the payload alone: whatever else stands in the envelope must be as `sign` writes it.
    signatures = {name: Signature(name, made.signature) for name, made in envelope.signatures.items()}
    if len(signatures) > 1 or _written(Envelope(envelope.payload, PAYLOAD_TYPE, signatures)) != text:
        raise BundleError("the envelope of the signature was altered: it is not as llmbench writes one")
    for name in signatures:
        trusted = [key for key in keys if key.keyid == name]
        if not trusted:
            return statement, None, f"key {name} signed it, and you did not give that key with --public-key"
        try:
            envelope.verify(trusted, 1)
        except VerificationError as error:
            raise BundleError(
                "the signature is not that of the key: the bundle was altered after it was signed"
            ) from error
        return statement, name, ""
    return statement, None, "it has no signature"


def signed_digests(statement: Statement) -> dict[str, str]:
    """The SHA-256 of the two files that a statement is about, by name.

    Raises BundleError if it is about anything else.
    """
    if statement.pb.predicate_type != PREDICATE_TYPE:
        raise BundleError(f"it states {statement.pb.predicate_type!r}, and not the result of a test")
    digests = {subject.name: str(subject.digest["sha256"]) for subject in statement.pb.subject}
    if digests.keys() != {MANIFEST, SESSION}:
        raise BundleError(f"its statement is about {', '.join(digests)}, not {MANIFEST} and {SESSION}")
    return digests


def _written(envelope: Envelope) -> bytes:
    return json.dumps(envelope.to_dict(), indent=1).encode() + b"\n"
