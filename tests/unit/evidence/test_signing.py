"""Keys, signatures and statements: as in-toto's reference reads them."""

import base64
import hashlib
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from google.protobuf.json_format import MessageToDict
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.evidence.archive import ATTESTATION, MANIFEST, SESSION, BundleError
from pytest_llmbench.evidence.attestation import (
    make_key,
    open_envelope,
    read_private_key,
    read_public_key,
    sign,
    signed_digests,
)
from tests.unit.evidence.conftest import KEY, Evidence

DIGESTS = {MANIFEST: "0" * 64, SESSION: "1" * 64}
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


def attestation(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The envelope of a bundle, and its other members."""
    with tarfile.open(path) as bundle:
        found = {name: bundle.extractfile(name) for name in bundle.getnames()}
        read = {name: file.read() for name, file in found.items() if file is not None}
    return json.loads(read[ATTESTATION]), read


def test_the_reference_verifier_accepts_it(evidence: Evidence) -> None:
    envelope, members = attestation(evidence.bundled())
    told = Envelope.from_dict(json.loads(json.dumps(envelope)))
    key = KEY.public_key
    assert told.verify([key], 1) == {key.keyid: key}
    other = CryptoSigner.generate_ed25519(keyid=key.keyid).public_key
    with pytest.raises(VerificationError):
        told.verify([other], 1)
    told.payload += b" "
    with pytest.raises(VerificationError):
        told.verify([key], 1)
    assert set(members) == {ATTESTATION, MANIFEST, SESSION}


def test_it_states_the_result_of_a_test(evidence: Evidence) -> None:
    envelope, members = attestation(evidence.bundled())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert digests == {name: hashlib.sha256(members[name]).hexdigest() for name in (MANIFEST, SESSION)}
    predicate = statement["predicate"]
    assert predicate["result"] == "PASSED"
    assert len(predicate["passedTests"]) == 5
    assert predicate["failedTests"] == predicate["warnedTests"] == []
    assert [each["name"] for each in predicate["configuration"]] == ["session.json", "system.json"]


def test_a_key_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new" / "site.pem"
    public = make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_public_key(public) == read_private_key(path).public_key
    before = path.read_bytes()
    for missing in (path, public):
        with pytest.raises(ConfigError, match="never overwritten"):
            make_key(path)
        missing.rename(missing.with_suffix(".away"))
        with pytest.raises(ConfigError, match="never overwritten"):
            make_key(path)
        missing.with_suffix(".away").rename(missing)
    assert path.read_bytes() == before


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "site.pem")
    (tmp_path / "site.pem").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_private_key(tmp_path / "site.pem")


def test_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    rsa = generate_private_key(public_exponent=65537, key_size=1024)
    written = {
        "rsa.pem": rsa.private_bytes(PEM, PKCS8, serialization.NoEncryption()),
        "locked.pem": rsa.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"word")),
        "text.pem": b"no key",
        "large.pem": b"x" * 100_000,
    }
    for name, text in written.items():
        (tmp_path / name).write_bytes(text)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(ConfigError, match=name):
            read_private_key(tmp_path / name)
        with pytest.raises(ConfigError, match=name):
            read_public_key(tmp_path / name)
    with pytest.raises(ConfigError, match="No such file"):
        read_public_key(tmp_path / "missing.pem")


@pytest.mark.parametrize(("old", "new"), [
    (b'"payloadType"', b'"payloadtype"'), (b"in-toto+json", b"in-toto+yaml"), (b"\n", b" "),
    (b'"signatures": [', b'"signatures": [{"keyid": "a", "sig": ""},'), (b'"sig": "', b'"sig": "AAAA'),
    (b'"payload": "', b'"payload": "!'), (b"{", b"[", ),
])  # fmt: skip
def test_an_envelope_that_is_written_otherwise_is_refused(old: bytes, new: bytes) -> None:
    text = sign({"result": "PASSED"}, DIGESTS, KEY)
    assert old in text
    with pytest.raises(BundleError):
        open_envelope(text.replace(old, new, 1), [KEY.public_key])


def test_a_stranger_and_nobody_are_named() -> None:
    text, unsigned = (sign({"result": "PASSED"}, DIGESTS, signer) for signer in (KEY, None))
    statement, key, reason = open_envelope(text, [CryptoSigner.generate_ed25519().public_key])
    assert (MessageToDict(statement.pb.predicate), signed_digests(statement), key) == (
        {"result": "PASSED"}, DIGESTS, None,
    )  # fmt: skip
    assert KEY.public_key.keyid in reason
    assert open_envelope(text, [KEY.public_key])[1:] == (KEY.public_key.keyid, "")
    assert open_envelope(unsigned, [KEY.public_key])[1:] == (None, "it has no signature")


def test_a_statement_about_something_else_is_refused() -> None:
    for old, new in (("test-result", "vsa"), ("manifest.json", "other.json")):
        envelope = json.loads(sign({"result": "PASSED"}, DIGESTS, None))
        payload = base64.b64decode(envelope["payload"]).replace(old.encode(), new.encode())
        envelope["payload"] = base64.b64encode(payload).decode()
        statement, _, _ = open_envelope(json.dumps(envelope, indent=1).encode() + b"\n", [])
        with pytest.raises(BundleError):
            signed_digests(statement)
