"""`--llmbench-simulate`: each fault strikes a real rank, and the gate fails."""

import json
from statistics import fmean
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire.fault import FAULTS
from pytest_llmbench.judging.good_runs import GoodRun, refuse_unlike
from tests.conftest import Result, UserFolder

LOCAL = ("--cluster", "local", "-k", "tiny")
SPEED = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("tiny")
def test_speed(run):
    assert run.step_time <= Quantity(0.12, "s")
"""
SIMULATED: dict[str, tuple[str, str]] = {
    "damaged-log": ("unreadable_log", "rank-00001.jsonl:"),
    "die": ("rank_died", "rank 1 on "),
    "full-disk": ("rank_died", "rank 1 on "),
    "hang": ("hang", "stands in forward of step 5, micro batch 2, while others wait in sync of step 5"),
    "lost-node": ("rank_died", "died without a word"),
    "nan": ("not_finite", "at step 5"),
    "oom": ("rank_died", "failed: MemoryError"),
    "stop": ("hang", "cannot answer: the process is stopped (T)"),
    "wrong-numbers": ("ranks_differ", "the ranks did not train one model"),
}


def simulated(user: UserFolder, fault: str, *args: str, **recipe: Any) -> Result:
    """A session with a fault, which says so in all its outputs and fails."""
    user.recipe(**{"deadlines": {"hang_factor": 5.0, "hang_floor_s": 3.0}, **recipe})
    result = user.run(*LOCAL, "--llmbench-simulate", fault, *args, code=1)
    assert result.text.count(f"SIMULATED FAULT {fault}: ") == 2
    assert result.record()["simulated"] == fault
    assert result.case.properties["simulated"] == fault
    return result


@pytest.mark.parametrize("fault", sorted({*FAULTS} - {"slow-rank"}))
def test_each_fault_is_an_error(user: UserFolder, fault: str) -> None:
    kind, words = SIMULATED[fault]
    result = simulated(user, f"{fault}@5")
    assert result.case.outcome == "error"
    assert f"({kind})" in result.case.message
    assert words in result.case.message
    assert (result.session / "runs/tiny/simulated/rank-00001").read_text() == f"{fault}@5\n"


@pytest.mark.parametrize("recorded", [True, False])
def test_a_slow_rank_fails_a_threshold(user: UserFolder, recorded: bool) -> None:
    user.test(SPEED)
    result = simulated(user, "slow-rank@5", options={"step_s": 0.1}, steps=24)
    assert result.case.outcome == "failure", result.text
    took = [step["seconds"] for step in result.record()["steps"]]
    assert fmean(took[4:]) >= min(took[:4]) + 0.08
    path = result.session / "runs/tiny/record.json"
    with pytest.raises(ConfigError, match="it was made with --llmbench-simulate slow-rank@5: a fault"):
        refuse_unlike([GoodRun(path, RunRecord.read(path))])
    if not recorded:
        path.unlink()  # as in a session that was killed
    replayed = user.run(f"--replay={result.session}", "-k", "tiny")
    assert replayed.record()["simulated"] == "slow-rank@5", replayed.text


@pytest.mark.parametrize("fault", ["die@1000", "full@3", "die@0", "die"])
def test_a_fault_that_cannot_strike_is_no_pass(user: UserFolder, fault: str) -> None:
    """A step that the recipe does not have is an ERROR before anything runs; nonsense is a usage error."""
    if fault == "die@1000":
        message = simulated(user, fault).case.message
        assert "(not_struck): --llmbench-simulate die@1000 can never strike: recipe tiny has" in message
        return
    user.recipe()
    result = user.run(*LOCAL, "--llmbench-simulate", fault, code=4)
    assert "such as die@8" in result.text or "damaged-log" in result.text


def test_a_lasting_fault_is_of_all_ranks_from_the_beginning(user: UserFolder) -> None:
    """What its variables do is up to NCCL; the session measures nothing, and its verdict is no pass."""
    user.recipe()
    result = user.run(*LOCAL, "--llmbench-simulate", "no-p2p")
    assert "SIMULATED FAULT no-p2p: all ranks of checks and runs have it" in result.text
    assert result.record()["simulated"] == "no-p2p"
    task = json.loads((result.session / "runs/tiny/task.json").read_text())
    assert (task["env"]["NCCL_P2P_DISABLE"], task["simulate"]) == ("1", {"name": "no-p2p", "step": None})
    assert json.loads((result.session / "verdict.json").read_text())["verdict"] == "nothing_judged"
    assert user.run(*LOCAL, "--llmbench-simulate", "no-p2p@3").returncode == 4
