"""`--llmbench-inconclusive rerun`: runs that decide nothing are made again, until they decide or cannot."""

import os
import signal
from typing import Any

import pytest

from tests.conftest import Result, UserFolder, Watch

# Its log has the same steps on any machine, but for noise that depends on its folder.
LOGGED: dict[str, Any] = {"steps": 60, "options": {"logged_s": 0.05}}
# 5,120 words/s. Runs may differ by 15 %: one does not decide on half of that, and two do.
TESTS = """
import datetime
import pytest
from pytest_llmbench import Quantity
from pytest_llmbench.core.recipe.reference import Reference

def wanted(at_least, **other):
    return Reference.model_validate({"name": "bound", "statistic": "throughput", "at_least": at_least, "why": "w",
        "source": "s", "date": datetime.date(2026, 1, 1), "applies_to": {"system": "local"}, **other})

@pytest.mark.recipe("tiny")
def test_speed(run):
    assert run.throughput in wanted(BOUND, OTHER)

@pytest.mark.recipe("tiny")
def test_loss(run):
    assert run.loss_drop >= Quantity("0.01 nat")
"""
WIDE = "between_runs='15 %', runs=3"


def asked(bound: str, other: str = WIDE) -> str:
    return TESTS.replace("BOUND", repr(bound)).replace("OTHER", other)


def made(result: Result) -> list[str]:
    return sorted(path.parent.name for path in result.session.glob("runs/*/task.json"))


@pytest.mark.parametrize("options", [("-n0",), ("-n2",), ("--cluster", "debug")])
def test_further_runs_decide(user: UserFolder, options: tuple[str, ...]) -> None:
    user.recipe(**LOGGED)
    user.test(asked("2560 words/s"))
    result = user.run("--cluster", "local", *options, "--llmbench-inconclusive", "rerun")
    assert result.returncode == 0, result.text
    runs = made(result)
    # Two, unless the machine is so busy that one of them was held up.
    assert len(runs) in {2, 4}
    told = result.cases["test_speed[tiny]"].properties
    assert (told["verdict"], told["runs"], float(told["alpha"])) == ("PASS", ",".join(runs), 0.005 / len(runs))
    assert len(told["each_run"].split(",")) == len(runs)
    assert "runs" not in result.cases["test_loss[tiny]"].properties
    assert [result.record(key)["look"] for key in runs] == [0, 1, 2, 2][: len(runs)]
    assert [len(result.record(key)["judgements"]) for key in runs] == [2, 1, 1, 1][: len(runs)]
    again = user.run("--system", "local", f"--replay={result.session}")
    replayed = again.cases["test_speed[tiny]"].properties
    assert {name: replayed[name] for name in ("verdict", "alpha", "low", "high")} == {
        name: told[name] for name in ("verdict", "alpha", "low", "high")
    }


def test_without_it_one_run_is_made(user: UserFolder) -> None:
    user.recipe(**LOGGED)
    user.test(asked("2560 words/s"))
    result = user.run("--cluster", "local")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert made(result) == ["tiny"]
    assert result.cases["test_speed[tiny]"].properties["alpha"] == "0.01"
    assert "about 2 runs would decide; pass `--llmbench-repeat 2`" in result.text
    again = user.run("--system", "local", f"--replay={result.session}", "--llmbench-inconclusive", "rerun")
    assert "No further run was made: logs are replayed" in again.cases["test_speed[tiny]"].message


@pytest.mark.parametrize(
    ("bound", "other", "options", "why"),
    [
        ("5120 words/s", WIDE, (), "more runs do not decide that"),
        ("5120 words/s", "claim='run'", (), "more runs do not decide that"),
        ("4900 words/s", WIDE, ("--time", "1"), "runs in all, and the time limit of 1 min has room for "),
    ],
)
def test_it_stops_with_a_reason(user: UserFolder, bound: str, other: str, options: tuple[str, ...], why: str) -> None:
    """No run is made that cannot decide, and the verdict stays INCONCLUSIVE."""
    user.recipe(**LOGGED)
    user.test(asked(bound, other))
    result = user.run("--cluster", "local", "--llmbench-inconclusive", "rerun", *options)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.text
    assert made(result) == ["tiny"]
    case = result.cases["test_speed[tiny]"]
    assert (case.properties["verdict"], case.outcome) == ("INCONCLUSIVE", "failure"), result.text
    assert "No further run was made: " in case.message
    assert why in case.message


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_further_run_that_breaks_is_an_error(user: UserFolder, watch: type[Watch], distribution: str) -> None:
    """The broken run is neither left out nor a pass, also if the session ends meanwhile."""
    user.recipe(steps=40, options={"logged_s": 0.1})
    user.test(asked("1280 words/s"))
    session = user.start("--cluster", "local", distribution, "--llmbench-inconclusive", "rerun")
    folder = user.wait_for(lambda session: watch.steps(session, "tiny-repeat2") > 2 and session)
    if distribution == "-n0":
        os.kill(watch.pid(folder, "tiny-repeat2", 0), signal.SIGKILL)
    else:
        session.send_signal(signal.SIGINT)
    result = user.finish(session)
    kind = {"-n0": "rank_died", "-n2": "session_ended"}[distribution]
    assert result.record("tiny-repeat2")["problem"]["kind"] == kind
    assert result.cases["test_speed[tiny]"].properties["verdict"] == "ERROR", result.text
    assert result.returncode != 0
