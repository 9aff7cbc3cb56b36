"""The commands of evidence, what they print and how they end; and the certificate, clause by clause."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pytest_llmbench.cli.app import app
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.schema import validate
from pytest_llmbench.evidence.certificate import NOT_MEASURED, certificate_rows, make_certificate
from pytest_llmbench.evidence.recorded import read_session
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


RECORD = "runs/tiny/record.json"


def rows(evidence: Evidence) -> dict[str, Any]:
    return {row.clause: row for row in certificate_rows(read_session(evidence.folder))}


def page(evidence: Evidence) -> str:
    return make_certificate(read_session(evidence.folder), "ab12")


def test_each_clause_has_its_number_and_the_hash_of_its_record(evidence: Evidence) -> None:
    found = rows(evidence)
    assert {clause: row.verdict for clause, row in found.items()} == {"4.10": "PASS", "4.2.1": "PASS", "3.1": "PASS"}
    fast = found["4.2.1"]
    assert fast.demanded == "throughput >= 10 words/s"
    assert re.fullmatch(r"[\d,]+ words/s", fast.measured)
    assert re.fullmatch(r"[\d,]+ words/s to [\d,]+ words/s", fast.interval)
    assert fast.sha256 == (hashlib.sha256(evidence.record.read_bytes()).hexdigest(),)
    assert found["3.1"].measured.startswith("23.54 GiB")
    assert page(evidence).count(": met</h2>") == 3
    shown = page(evidence)
    assert "<code>ab12</code>" in shown
    assert [shown.count(f"<strong>{party}</strong>") for party in ("Supplier", "Buyer")] == [1, 1]
    assert shown.count(f"<small>on {', '.join(fast.hosts)}</small>") == 3
    for words in ("1 layers, hidden size 32, 2 heads, 128 words", "8 sequences of 32 tokens, 2 at a time", "fp32",
                  "24 of 24, judged from step 3"):  # fmt: skip
        assert f"<td>{words}</td>" in shown
    evidence.change(RECORD, lambda data: data.update(as_recorded="judged as recorded, by its own recipe: steps: 24"))
    assert "<td>judged as recorded, by its own recipe: steps: 24</td>" in page(evidence)
    evidence.change(RECORD, lambda data: [each.update(floor="8 × A100") for each in data["judgements"]])
    assert "throughput &gt;= 10 words/s (a floor, set for 8 × A100)" in page(evidence)


def test_a_clause_without_a_measurement_is_not_met(evidence: Evidence) -> None:
    whole = evidence.record.read_text()
    for change in (
        lambda data: data.update(judgements=[]),
        lambda data: [each.update(verdict="SKIP", reason="not here") for each in data["judgements"]],
        lambda data: [each.update(measured=None) for each in data["judgements"]],
    ):
        evidence.record.write_text(whole)
        evidence.change(RECORD, change)
        assert (rows(evidence)["4.2.1"].verdict, rows(evidence)["4.2.1"].met) == (NOT_MEASURED, False)
        assert page(evidence).count(": NOT MET</h2>") == 2
    evidence.record.unlink()
    evidence.change("checks/memory/record.json", lambda data: data["report"].update(readings=[]))
    assert {row.verdict for row in rows(evidence).values()} == {NOT_MEASURED}
    assert page(evidence).count(": NOT MET</h2>") == 3


def test_the_worst_verdict_of_a_bound_counts(evidence: Evidence) -> None:
    """A check that is an ERROR, or a reading that misses the bound, makes a clause of it not met."""
    evidence.change(RECORD, lambda data: data["judgements"].append({**data["judgements"][1], "verdict": "FAIL"}))
    assert rows(evidence)["4.2.1"].verdict == "FAIL"
    evidence.change("checks/memory/record.json", lambda data: data["report"].update(problem="it broke"))
    assert rows(evidence)["3.1"].verdict == NOT_MEASURED
    evidence.replace("system.json", '"1 GiB"', '"100000 GiB"')
    assert rows(evidence)["3.1"].verdict == "FAIL"


def test_the_text_of_others_is_text(evidence: Evidence) -> None:
    for path in ("session.json", RECORD):
        evidence.replace(path, "it must be fast", "<script>alert(1)</script>\\u001b[31m")
    text = page(evidence)
    assert "<script" not in text
    assert "\x1b" not in text
    assert re.findall("<(img|script|link|iframe|object)", text) == []
    assert "http" not in text


def test_a_clause_is_a_text() -> None:
    """YAML would take 4.10 for 4.1."""
    given = {"name": "a", "statistic": "mfu", "at_least": "1 %", "why": "w", "source": "s", "date": "2026-01-01"}
    assert validate(Reference, {**given, "clause": "4.10"}, "here").clause == "4.10"
    for clause in (4.10, 4, "", " ", True):
        with pytest.raises(ConfigError, match="clause"):
            validate(Reference, {**given, "clause": clause}, "here")
