"""A recorded session, and bundles of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, SSlibKey

from pytest_llmbench.evidence.bundle import make_bundle
from pytest_llmbench.evidence.verify import Verification, verify

(RECORDED,) = (Path(__file__).parents[2] / "data" / "evidence").glob("2*")
KEY = CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@dataclass(frozen=True)
class Evidence:
    """A copy of the recorded session that a test may alter before it is bundled."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "runs" / "tiny" / "record.json"

    @property
    def target(self) -> Path:
        return self.folder.parent / "session.llmbench.tar"

    def change(self, path: str, change: Callable[[Any], object]) -> None:
        data = json.loads((self.folder / path).read_text())
        change(data)
        (self.folder / path).write_text(json.dumps(data))

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        assert old in text
        (self.folder / path).write_text(text.replace(old, new))

    def bundled(self, key: CryptoSigner | None = KEY) -> Path:
        make_bundle(self.folder, self.target, key)
        return self.target

    def verified(self, *keys: SSlibKey, signer: CryptoSigner | None = KEY) -> Verification:
        return verify(self.bundled(signer), keys or (KEY.public_key,))


@pytest.fixture
def evidence(tmp_path: Path, unigram: None) -> Evidence:
    return Evidence(Path(shutil.copytree(RECORDED, tmp_path / RECORDED.name)))
