"""A bundle is refused if one byte of it is another one than its signer wrote."""

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.evidence import archive, bundle
from pytest_llmbench.evidence.archive import ATTESTATION, MANIFEST, SESSION, BundleError
from pytest_llmbench.evidence.bundle import open_bundle, unpack
from pytest_llmbench.evidence.contents import Manifest, refuse_name
from tests.conftest import known
from tests.unit.evidence.conftest import KEY, Evidence


def refused(path: Path, content: bytes) -> str:
    """The words with which a bundle is refused; with another id of its key it is the bundle of a stranger."""
    path.write_bytes(content)
    try:
        with open_bundle(path, [KEY.public_key]):
            return ""
    except BundleError as error:
        return str(error)


def test_the_same_session_gives_the_same_bytes(evidence: Evidence) -> None:
    first = evidence.bundled().read_bytes()
    (evidence.folder / "junit.xml").touch()
    assert evidence.bundled().read_bytes() == first


def test_any_tar_reads_it(evidence: Evidence) -> None:
    with tarfile.open(evidence.bundled()) as outer:
        assert outer.getnames() == [ATTESTATION, MANIFEST, SESSION]
        inner = known(outer.extractfile(SESSION))
        with tarfile.open(fileobj=inner) as session:
            log = known(session.extractfile("runs/tiny/steps/rank-00000.jsonl"))
            assert log.read() == (evidence.folder / "runs/tiny/steps/rank-00000.jsonl").read_bytes()


def test_an_altered_byte_or_bit_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    whole, chance, target = evidence.bundled().read_bytes(), random.Random(1), tmp_path / "altered"
    envelope = range(512, 512 + whole.index(b"\0", 512))
    places = [*chance.sample(range(len(whole)), 200), *chance.sample(envelope, 100)]
    assert not refused(target, whole)
    for number, place in enumerate(places):
        altered = bytearray(whole)
        altered[place] ^= 1 << chance.randrange(8) if number % 2 else chance.randrange(1, 256)
        assert refused(target, bytes(altered)), place


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda whole: whole[:-1], "cut in half": lambda whole: whole[: len(whole) // 2],
    "a byte behind the end": lambda whole: whole + b"\0", "a block behind the end": lambda whole: whole + bytes(512),
    "twice": lambda whole: whole * 2, "no bundle": lambda whole: b"x" * len(whole), "nothing": lambda whole: whole[:0],
    "a member before it": lambda whole: archive.header("x", 0) + whole,
    "another order": lambda whole: whole[512:] + whole[:512],
}  # fmt: skip


@pytest.mark.parametrize("how", ALTERED)
def test_another_layout_is_refused(evidence: Evidence, tmp_path: Path, how: str) -> None:
    assert refused(tmp_path / "altered", ALTERED[how](evidence.bundled().read_bytes()))


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/../b", "a//b", "", ".", "a\\b", "a\nb", "a\x1b[31m", "a/", "\u202ea", "a" * 2000]
)
def test_a_path_that_leads_elsewhere_is_refused(name: str) -> None:
    """A path that a person would read as another one is refused too."""
    with pytest.raises(BundleError, match="cannot be the path"):
        refuse_name(name)


@pytest.mark.parametrize(
    ("paths", "words"),
    [(["a", "a"], "twice"), (["a", "A"], "case"), (["é", "e\u0301"], "twice"), (["a", "a/b"], "file and a folder")],
)
def test_paths_that_meet_are_refused(paths: list[str], words: str) -> None:
    listed = [{"path": path, "size": 0, "sha256": "0" * 64} for path in paths]
    manifest = Manifest.model_validate({"session": "s", "llmbench": "0", "files": listed})
    with pytest.raises(BundleError, match=words):
        Manifest.read(manifest.model_dump_json().encode())


def test_what_unpacks_to_too_much_is_refused(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than allowed, or more than so many times those of the file: nothing is unpacked."""
    path = evidence.bundled()
    monkeypatch.setattr(bundle, "unpack", None)
    with pytest.raises(BundleError, match="at most 1000"), open_bundle(path, [KEY.public_key], most=1000):
        pass  # pragma: no cover
    monkeypatch.setattr(bundle, "_ALWAYS_READ", 1000)
    monkeypatch.setattr(bundle, "_MOST_RATIO", 2)
    with pytest.raises(BundleError, match="more than 2 times"), open_bundle(path, [KEY.public_key]):
        pass  # pragma: no cover


@pytest.fixture
def files(evidence: Evidence, tmp_path: Path) -> tuple[Manifest, bytes]:
    """The manifest and the compressed files of a bundle."""
    with tarfile.open(evidence.bundled()) as outer:
        manifest, session = outer.extractfile(MANIFEST), outer.extractfile(SESSION)
        assert manifest is not None
        assert session is not None
        return Manifest.read(manifest.read()), session.read()


LINK = tarfile.TarInfo("link")
LINK.type, LINK.linkname = tarfile.SYMTYPE, "/etc/passwd"
# Altered archives, made of the compressed one and of the plain one.
SESSIONS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "no gzip": lambda _, plain: plain, "cut": lambda session, _: session[:-3],
    "bytes behind it": lambda session, _: session + b"x", "twice": lambda session, _: session * 2,
    "a bomb behind it": lambda _, plain: gzip.compress(plain + bytes(1 << 24)),
    "a member more": lambda _, plain: gzip.compress(plain[:-1024] + archive.header("more", 0) + bytes(1024)),
    "a member less": lambda _, plain: gzip.compress(plain[512:]),
    "a link": lambda _, plain: gzip.compress(LINK.tobuf() + plain),
}  # fmt: skip


@pytest.mark.parametrize("how", SESSIONS)
def test_files_that_no_manifest_lists_are_refused(files: tuple[Manifest, bytes], tmp_path: Path, how: str) -> None:
    manifest, session = files
    unpack(io.BytesIO(session), manifest, tmp_path / "sound")
    with pytest.raises(BundleError):
        unpack(io.BytesIO(SESSIONS[how](session, gzip.decompress(session))), manifest, tmp_path / "altered")
    assert not list((tmp_path / "altered").rglob("link"))
