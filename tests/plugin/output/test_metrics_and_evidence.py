"""What a session leaves: its report, numbers for monitoring, a folder to be bundled, and records that nobody alters."""

import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser
from securesystemslib.signer import CryptoSigner
from typer.testing import CliRunner

from pytest_llmbench.cli.app import app
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.evidence.bundle import make_bundle
from pytest_llmbench.evidence.contents import MADE_AGAIN
from pytest_llmbench.evidence.recheck import differences_of_derived
from pytest_llmbench.evidence.recorded import read_session
from pytest_llmbench.evidence.verify import verify
from tests.conftest import UserFolder

LOCAL = ("--cluster", "local")


def test_a_session_is_exported_bundled_and_verified(user: UserFolder, tmp_path: Path) -> None:
    user.recipe()
    result = user.run("-n2", *LOCAL, code=0)
    metrics = user.path / "llmbench.prom"
    words = ["report", str(result.session), "--format", "openmetrics", "--output", str(metrics)]
    assert CliRunner().invoke(app, words).exit_code == 0
    read: Callable[[str], Any] = parser.text_string_to_metric_families
    families = read(metrics.read_text())
    found = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert found["llmbench_tests", "PASS"] == 1
    assert found["llmbench_run_judged", "tiny", "tiny", "local"] == 1
    key = CryptoSigner.generate_ed25519()
    make_bundle(result.session, tmp_path / "b.tar", key)
    # No reference of its recipe is on speed.
    told = verify(tmp_path / "b.tar", [key.public_key])
    assert (told.verified, told.result, told.verdicts, told.taken) == (True, "WARNED", 1, [])
    assert {each.partition(":")[0] for each in told.left_out} >= {"live.json"}
    every_file_is_held_against_the_others(result.session, tmp_path)


# Files from which no other file follows. Output of ranks is evidence that the signature alone protects.
RAW = ("owner", "stop", "runs/*/logs/*", "runs/*/meeting/*", "runs/*/phase/*", "runs/*/pauses/*", "runs/*/job.json",
       "runs/*/rendezvous.json", "runs/*/task.json", "system.json", "*/latest")  # fmt: skip


def every_file_is_held_against_the_others(session: Path, place: Path) -> None:
    """Alter each file of a session that was bundled: whoever signs it again, the verification names the file.

    A file that a session leaves from now on has to be named as well, left out, or listed above.
    """
    key = CryptoSigner.generate_ed25519()
    bundled = [path for path in sorted(session.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = {path.relative_to(session).as_posix(): path for path in bundled}
    derived = [name for name in names if name not in MADE_AGAIN and not any(fnmatch(name, raw) for raw in RAW)]
    known = {"verdicts.json", "verdict.json", "junit.xml", "runs/tiny/record.json"}
    assert set(derived) >= {*known, "journal", "session.json", "runs/tiny/steps/rank-00000.jsonl"}
    for name in derived:
        whole = names[name].read_bytes()
        names[name].write_bytes(altered(name, whole))
        assert names[name].read_bytes() != whole, name
        try:
            make_bundle(session, place / "altered.tar", key)
            found = verify(place / "altered.tar", [key.public_key]).differences
        except LLMBenchError as error:
            found = [str(error)]
        assert found, f"{name} was altered, and nothing names it"
        names[name].write_bytes(whole)
    path = names["verdicts.json"]
    whole = path.read_bytes()
    tests = json.loads(whole)["tests"]
    for number, test in enumerate(tests):
        for key_of, value in test.items():
            changed = [{**row, key_of: f"{value}0"} if at == number else row for at, row in enumerate(tests)]
            path.write_text(json.dumps({**json.loads(whole), "tests": changed}))
            assert [*differences_of_derived(read_session(session))], f"tests[{number}].{key_of}"
    path.write_text(json.dumps({**json.loads(whole), "tests": tests[1:]}))
    assert any("verdicts.json: " in each for each in differences_of_derived(read_session(session)))
    path.write_bytes(whole)


def altered(name: str, whole: bytes) -> bytes:
    """A file that says something else: another verdict, or else another number, and is still one of its kind."""
    for old, new in ((b"PASS", b"FAIL"), (b'"seconds":0.0', b'"seconds":9.0')):
        if old in whole:
            return whole.replace(old, new, 1)
    digit = re.search(rb"[1-8]", whole)
    assert digit is not None, name
    return whole[: digit.start()] + b"9" + whole[digit.end() :]


TESTS = """
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference

def test_free(run):
    assert run.record.steps
"""


def test_a_session_has_its_report(user: UserFolder) -> None:
    """Each test is a row of it, as it is a case of the XML; one that compared nothing is no plain PASS."""
    user.recipe()
    user.test(TESTS)
    result = user.run("--cluster=local", "-k", "tiny", "-o", "llmbench_report=yes", "-n2", code=0)
    page = (result.session / "report.html").read_text(encoding="utf-8")
    assert page.count("<tr data-k=") == len(result.cases) == 2
    assert (page.count('<tr data-k="pass"'), page.count('<tr data-k="unbounded"')) == (1, 1)
    assert "NO SPEED WAS JUDGED for tiny" in page
    assert f"report: reports/{result.session.name}/report.html" in result.text
    told = json.loads((result.session / "verdicts.json").read_text())
    assert {each["test"].partition("::")[2] for each in told["tests"]} == set(result.cases)


def test_a_session_without_it(user: UserFolder) -> None:
    user.recipe(engine="torch", global_batch_size=3, micro_batch_size=2)  # refused before it starts, which costs no run
    result = user.run("--cluster=local", "-k", "tiny", "-o", "llmbench_report=no")
    assert (result.session / "verdicts.json").is_file()
    assert not (result.session / "report.html").exists()


DAMAGE = """
import contextlib, pathlib

def pytest_runtest_logfinish(nodeid):
    for path in pathlib.Path("reports").glob("2*/runs/{run}/record.json"):
        with contextlib.suppress(FileNotFoundError):  # a worker and its controller are both here
            if '"judgements": []' not in path.read_text():
                {damage}
"""


@pytest.mark.parametrize(("distribution", "damage"), [
    ("-n0", "path.unlink()"),
    ("-n2", 'path.write_text(path.read_text().replace("PASS", "FAIL"))'),
], ids=["gone", "changed"])  # fmt: skip
def test_a_record_that_is_not_what_was_judged(user: UserFolder, distribution: str, damage: str) -> None:
    """The verdict stays, the session fails, every report says so, and no reader takes the other text for the record."""
    user.recipe("first")
    user.recipe("second")
    (user.path / "conftest.py").write_text(DAMAGE.format(run="first", damage=damage))
    result = user.run("--cluster", "local", distribution, "--llmbench-history", "h.db")
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR, result.text
    assert "2 passed" in result.text
    told = "the record of run first is lost: "
    assert told in result.text
    session = result.session
    assert json.loads((session / "verdict.json").read_text())["verdict"] == "broken"
    assert told in (session / "summary.md").read_text()
    assert told in (session / "verdicts.json").read_text()
    changed = "unlink" not in damage
    why = "it was changed while its session went on" if changed else "it is not there"
    assert f"record of run first: {why}" in CliRunner().invoke(app, ["report", str(session)]).output
    assert "the record of run first is not there" in result.text  # in the history
    kept = [path.name for path in (session / "runs" / "first").glob("record*")]
    assert kept == (["record-altered.json"] if changed else [])
    assert result.record("second")["judgements"][0]["verdict"] == "PASS"
