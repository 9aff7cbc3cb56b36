"""A session with `--llmbench-history`: its records are kept, and its runs are compared with earlier ones."""

import json
import random
import shutil

import pytest

from pytest_llmbench.history.database import open_history
from pytest_llmbench.history.importing import import_sessions
from pytest_llmbench.history.queries import list_sessions, read_series
from tests.conftest import Result, UserFolder
from tests.plugin.conftest import RECORDED, record_anew

TEST = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("opt125m")
def test_learns(run):
    assert run.loss_drop >= Quantity("0.01 nat")
"""


def recorded(user: UserFolder, slower: float) -> None:
    """The real session as if its steps had taken longer, each by a little more or less than the share."""
    rng = random.Random(slower)
    shutil.rmtree(user.path / "recorded", ignore_errors=True)
    shutil.copytree(RECORDED, user.path / "recorded")
    log = user.path / "recorded" / "runs" / "opt125m" / "steps" / "rank-00000.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    began, late = lines[0]["time"], 0.0
    for line in lines:
        if "seconds" in line:
            more = line["seconds"] * (slower + rng.uniform(0.0, 1e-4))
            line["seconds"] += more
            late += more
        for name in ("time", "logged"):
            if name in line:
                line[name] += late
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert lines[-1]["time"] >= began
    path = log.parents[1] / "record.json"
    record = json.loads(path.read_text())
    record["timings"]["ended"] += late
    record["judgements"] = []  # they are of the real durations
    path.write_text(json.dumps(record))
    record_anew(path)


def judge(user: UserFolder, slower: float, *options: str) -> Result:
    recorded(user, slower)
    user.test(TEST)
    return user.run("--replay", "as-recorded:recorded", "--llmbench-history", "history.db", *options)


def test_a_regression_fails_and_everything_is_kept(user: UserFolder) -> None:
    """The first session has no baseline and says so, an equal one passes, and a slower one fails in table and XML."""
    first = judge(user, 0.0, "--llmbench-compare-to", "last")
    assert first.returncode == 0, first.text
    case = first.cases["opt125m"]
    assert (case.outcome, case.properties["verdict"]) == ("skipped", "SKIP")
    assert "has no earlier run of opt125m" in case.message
    # Runs of few steps need three earlier ones to be compared with.
    more = [judge(user, change) for change in (5e-4, -5e-4)]
    same = judge(user, 1e-3, "-n2", "--llmbench-compare-to", "last:3")
    assert same.returncode == 0, same.text
    assert same.cases["opt125m"].properties["verdict"] == "PASS"
    slow = judge(user, 0.2, "--llmbench-compare-to", "last:4")
    assert slow.returncode == pytest.ExitCode.TESTS_FAILED, slow.text
    case = slow.cases["opt125m"]
    assert (case.outcome, case.properties["statistic"]) == ("failure", "throughput")
    assert float(case.properties["change"]) == pytest.approx(-16.7, abs=0.3)
    assert float(case.properties["change_high"]) < 0.0
    assert case.properties["baseline"] == ",".join(one.session.name for one in (first, *more, same))
    assert "beyond the uncertainty of both" in slow.text
    history = open_history(user.path / "history.db")
    assert [each["verdicts"] for each in list_sessions(history)] == [
        {"FAIL": 1, "PASS": 1}, {"PASS": 2}, {"PASS": 1}, {"PASS": 1}, {"PASS": 1, "SKIP": 1},
    ]  # fmt: skip
    assert len(read_series(history, "opt125m", "throughput")) == 5
    # The session kept the same records that lie in the folder.
    told = import_sessions(history, [user.path / "reports"])
    assert (told.new, told.known, told.refused) == (0, 5, [])


def test_a_history_that_cannot_be_written_is_an_error(user: UserFolder) -> None:
    open_history(user.path / "history.db")
    (user.path / "conftest.py").write_text(
        "import pathlib\n\ndef pytest_runtest_teardown():\n"
        "    pathlib.Path('history.db').write_text('no database' * 1000)\n"
    )
    result = judge(user, 0.0)
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert "the session is not in the history" in result.text
    assert result.cases["test_learns[opt125m]"].properties["verdict"] == "PASS"


def test_an_unknown_baseline_is_said_before_the_session(user: UserFolder) -> None:
    shutil.copytree(RECORDED, user.path / "recorded")
    user.test(TEST)
    result = user.run(
        "--replay", "as-recorded:recorded", "--llmbench-history", "h.db", "--llmbench-compare-to", "tag:v1"
    )
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unknown tag of the history 'v1'" in result.text
    assert result.found is None
