"""Signatures of bundles: ed25519 keys in PEM files, and in-toto statements in DSSE envelopes.

Formats: https://github.com/secure-systems-lab/dsse (v1), https://in-toto.io/Statement/v1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.bundle.archive import BundleError
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, make_folder, read_at_most
from pytest_llmbench.core.plain import read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_LARGEST_KEY = 1 << 16


def make_key(path: Path) -> Path:
    """Write a new private key, readable by this user alone, and its public key next to it.

    Returns:
        The file of the public key: the same name with `.pub.pem`.

    Raises:
        ConfigError: one of the files exists already, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # OpenSSL takes 50 ms to load
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  # likewise

    public = path.with_name(f"{path.name.removesuffix('.pem')}.pub.pem")
    if public.exists():
        raise ConfigError(f"{public} exists already: a key is never overwritten; give another --output")
    key = Ed25519PrivateKey.generate()
    private_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_text = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    make_folder(path.absolute().parent)
    _write_new(path, private_text, PRIVATE)
    _write_new(public, public_text, 0o644)
    return public


def _write_new(path: Path, text: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already: a key is never overwritten; give another --output") from error


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        ConfigError: others may read it, it is encrypted, or it is not an ed25519 key in PEM.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # likewise
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # likewise
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  # likewise

    text = read_at_most(path, _LARGEST_KEY)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}, and consider whether it is still secret")
    try:
        key = serialization.load_pem_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} must be a private key in PEM without a passphrase: {error}; see llmbench keygen"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is a key of another kind than ed25519; llmbench keygen makes one")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        ConfigError: it is not an ed25519 public key in PEM.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # likewise
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # likewise
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415  # likewise

    try:
        key = serialization.load_pem_public_key(read_at_most(path, _LARGEST_KEY))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} must be a public key in PEM, which begins with BEGIN PUBLIC KEY: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is a key of another kind than ed25519")
    return key


def key_id(key: Ed25519PublicKey) -> str:
    """The id of a key: the one that securesystemslib, the reference of in-toto, gives it."""
    told = {"keytype": "ed25519", "keyval": {"public": key.public_bytes_raw().hex()}, "scheme": "ed25519"}
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sign(statement: Mapping[str, Any], key: Ed25519PrivateKey | None) -> bytes:
    """Put a statement into an envelope; without a key, into one without a signature."""
    payload = json.dumps(statement, sort_keys=True, ensure_ascii=False).encode()
    signatures = [(key_id(key.public_key()), key.sign(_signed(payload)))] if key is not None else []
    return _envelope(payload, signatures)


def open_envelope(
    text: bytes, keys: Sequence[Ed25519PublicKey]
) -> tuple[Mapping[str, Any], Ed25519PublicKey | None, str]:
    """Read an envelope.

    Args:
        text: the envelope.
        keys: those that are trusted.

    Returns:
        The statement, the trusted key that signed it, and else the reason why no trusted key did.

    Raises:
        BundleError: it differs from what `sign` writes, or its signature is not the key's.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  # likewise

    try:
        told = read_json(text)
        payload = base64.b64decode(told["payload"], validate=True)
        found = [(each["keyid"], base64.b64decode(each["sig"], validate=True)) for each in told["signatures"]]
        statement = read_json(payload)
        # The same content in other bytes is refused: the signature covers bytes.
        as_written = isinstance(statement, dict) and _envelope(payload, found) == text
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise BundleError(f"the envelope of the signature was altered: {error}") from error
    if not as_written:
        raise BundleError("the envelope of the signature was altered: it is not as llmbench writes one")
    if not found:
        return statement, None, "it has no signature"
    if len(found) > 1:
        raise BundleError("it has several signatures, and llmbench makes one")
    name, signature = found[0]
    trusted = next((key for key in keys if key_id(key) == name), None)
    if trusted is None:
        return statement, None, f"key {name} signed it, and you did not give that key with --public-key"
    try:
        trusted.verify(signature, _signed(payload))
    except InvalidSignature as error:
        raise BundleError("the signature is not that of the key: the bundle was altered after it was signed") from error
    return statement, trusted, ""


def _envelope(payload: bytes, signatures: Sequence[tuple[str, bytes]]) -> bytes:
    told = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": name, "sig": base64.b64encode(sig).decode()} for name, sig in signatures],
    }
    return json.dumps(told, indent=1, ensure_ascii=True).encode() + b"\n"


def _signed(payload: bytes) -> bytes:
    """The signed bytes of a payload: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
