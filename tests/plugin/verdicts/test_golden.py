"""Golden losses, as a user has them: recorded from repeats by the command, and compared with in a test."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Result, UserFolder
from tests.support.warm import asking as warm_pytest

TEST = """
from pathlib import Path
from pytest_llmbench.api import GoldenLosses

def test_losses(run):
    assert run.losses in GoldenLosses.read(Path(__file__).with_name("golden.json"))
"""


def command(user: UserFolder, *args: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest_llmbench.cli", "calibrate", "--losses", *args]
    return warm_pytest.run(words, cwd=user.path, environment=user.environment, timeout_s=60)


@pytest.fixture
def golden(user: UserFolder) -> Path:
    """Golden losses of three real trainings, which their ranks repeat bit by bit."""
    user.recipe()
    user.test("def test_it(run):\n    assert run.loss_drop\n")
    user.run("--cluster", "local", "--llmbench-repeat", "3", code=0)
    made = command(user, "reports", "--output", "golden.json")
    assert made.returncode == 0, made.stdout
    user.test(TEST)
    return user.path / "golden.json"


def again(user: UserFolder, *args: str) -> Result:
    return user.run("--cluster", "local", *args)


def test_a_training_has_its_golden_losses(user: UserFolder, golden: Path) -> None:
    """The next run has the same bits; one other bit in one step, and it has not; other data are an error, no repeat."""
    told = json.loads(golden.read_text())
    assert (told["recipe"], told["exact"], len(told["runs"]), len(told["steps"])) == ("tiny", True, 3, 8)
    result = again(user, "-n2")
    assert result.returncode == 0, result.text
    properties = result.case.properties
    assert (properties["verdict"], properties["statistic"], properties["judged_by"]) == ("PASS", "losses", "golden")
    assert (properties["value"], properties["threshold"]) == ("0.0", "<= 0 nat")

    losses = told["steps"]
    losses[4]["loss"] = math.nextafter(losses[4]["loss"], math.inf)
    golden.write_text(json.dumps({**told, "versions": {**told["versions"], "python": "2.7"}}))
    result = again(user, "-n0")
    assert (result.returncode, result.case.outcome) == (1, "failure"), result.text
    assert "of step 5 is" in result.case.message
    assert "allowed: no difference in any bit; 1 of 8 steps differ, from step 5 on" in result.case.message
    assert "other software than in the golden runs: python" in result.case.message
    assert result.record()["judgements"][0]["statistic"] == "losses"

    user.recipe(data={"kind": "synthetic", "seed": 2})
    result = again(user, "-n0")
    assert result.case.outcome == "error", result.text
    assert "golden losses of tiny are of another training: recipe.data" in result.case.message
    refused = command(user, "reports")
    assert refused.returncode == 2
    assert "the runs differ in recipe.data" in refused.stdout
