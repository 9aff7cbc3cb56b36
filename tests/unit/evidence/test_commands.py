"""`llmbench keygen`, `bundle` and `verify`: what they print, and how they end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_llmbench.cli.app import app
from tests.conftest import INSTALLED
from tests.unit.evidence.conftest import Evidence

# Without torch, submitit and programs, as on a machine that only verifies.
BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from pytest_llmbench.cli.app import main
sys.argv = ["llmbench", *sys.argv[1:]]
main()
"""


def bare(absent: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that lacks these packages, and finds no program."""
    return subprocess.run(
        [sys.executable, "-c", BARE.replace("{ABSENT}", absent), *words],
        env={"PATH": "", "PYTHONPATH": str(INSTALLED)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def llmbench(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


@pytest.fixture
def key(tmp_path: Path) -> Path:
    assert llmbench("keygen", "--output", str(tmp_path / "site.pem"))[0] == 0
    return tmp_path / "site.pem"


def test_a_bundle_is_verified_without_slurm_and_torch(evidence: Evidence, key: Path) -> None:
    assert llmbench("bundle", str(evidence.folder), "--key", str(key), "--output", str(evidence.target))[0] == 0
    absent = '{"torch", "submitit", "xdist", "numpy"}'
    public = str(key.with_suffix(".pub.pem"))
    done = bare(absent, "verify", str(evidence.target), "--public-key", public, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["verified"], told["runs"], told["result"]) == (True, 1, "PASSED")


def test_each_end_has_its_exit_code(evidence: Evidence, key: Path, tmp_path: Path) -> None:
    """0 for a bundle that is verified, 1 with words for one that is not."""
    target, public = str(evidence.target), str(key.with_suffix(".pub.pem"))
    code, text = llmbench(
        "bundle", str(evidence.folder), "--key", str(key), "--output", target, "--certificate",
        str(tmp_path / "certificate.html"), "--json",
    )  # fmt: skip
    told = json.loads(text)
    assert (code, told["result"], told["bytes"]) == (0, "PASSED", evidence.target.stat().st_size)
    assert "Clause 4.2.1: met" in (tmp_path / "certificate.html").read_text()
    assert llmbench("verify", target, "--public-key", public)[1].endswith("VERIFIED\n")
    code, text = llmbench("verify", target)
    assert (code, text.startswith("NOT VERIFIED: no trusted key has signed it")) == (1, True)
    evidence.target.write_bytes(evidence.target.read_bytes()[:-9])
    code, text = llmbench("verify", target, "--public-key", public)
    assert (code, text.startswith("NOT VERIFIED: ")) == (1, True)
    code, text = llmbench("verify", target, "--public-key", public, "--json")
    assert (code, json.loads(text)["verified"]) == (1, False)
    code, text = llmbench("bundle", str(evidence.folder), "--output", target)
    assert (code, "it has no signature" in text) == (0, True)


def test_a_bundle_inside_of_its_session_is_refused(evidence: Evidence) -> None:
    done = CliRunner().invoke(app, ["bundle", str(evidence.folder), "--output", str(evidence.folder / "b.tar")])
    assert "inside of the session's folder" in str(done.exception)


@pytest.mark.parametrize("package", ["cryptography", "in_toto_attestation", "securesystemslib"])
def test_without_the_extra_its_name_is_given(evidence: Evidence, package: str) -> None:
    for words in (("keygen",), ("bundle", str(evidence.folder)), ("verify", str(evidence.target))):
        done = bare(repr({package}), *words)
        assert done.returncode == 2
        assert "pip install 'pytest-llmbench[evidence]'" in done.stderr
