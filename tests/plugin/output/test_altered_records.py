"""Records that are changed or taken away while their session runs: told, and never taken for the evidence."""

import json

import pytest

from pytest_llmbench.session.folder import read_folder
from tests.conftest import UserFolder

DAMAGE = """
import contextlib, pathlib

def pytest_runtest_logfinish(nodeid):
    for path in pathlib.Path("reports").glob("2*/runs/{run}/record.json"):
        with contextlib.suppress(FileNotFoundError):  # a worker and its controller are both here
            if '"judgements": []' not in path.read_text():
                {damage}
"""


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
@pytest.mark.parametrize(
    "damage", ["path.unlink()", 'path.write_text(path.read_text().replace("PASS", "FAIL"))'], ids=["gone", "changed"]
)
def test_a_record_that_is_not_what_was_judged(user: UserFolder, distribution: str, damage: str) -> None:
    """The verdict stays, the session fails, every report says so, and no reader takes the other text for the record."""
    user.recipe("first")
    user.recipe("second")
    user.test()
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
    assert why in read_folder(session).broken["run", "first"]
    assert "the record of run first is not there" in result.text  # in the history
    kept = [path.name for path in (session / "runs" / "first").glob("record*")]
    assert kept == (["record-altered.json"] if changed else [])
    assert result.record("second")["judgements"][0]["verdict"] == "PASS"
