"""Several runs of one recipe that are judged together: `--llmbench-repeat`, `repeats` of the marker, and reruns."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ASLEEP, TINY, Result, UserFolder, Watch

FAST = {
    "name": "fast", "statistic": "throughput", "at_least": "1 words/s", "why": "any machine is faster",
    "source": "this test", "date": "2026-01-01", "applies_to": {"system": "local"},
}  # fmt: skip
REFERENCES = [*TINY["references"], FAST]
MARKED = """
import pytest

@pytest.mark.recipe("tiny", repeats=2)
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference
"""
ENDED = ["tiny", "tiny-repeat2", "tiny-repeat3"]


def runs(user: UserFolder) -> list[str]:
    assert user.session is not None
    return sorted(path.parent.name for path in user.session.glob("runs/*/record.json"))


def test_runs_follow_each_other_and_are_judged_together(user: UserFolder) -> None:
    """Each has its own record; each test has one verdict, which every one of them counts for."""
    user.recipe(references=REFERENCES, steps=30)
    user.test()
    result = user.run("--cluster", "local", "--llmbench-repeat", "3", "-n2", code=0)
    assert runs(user) == ENDED
    records = [result.record(key) for key in ENDED]
    times = [record["timings"] for record in records]
    assert all(one["ended"] <= other["submitted"] for one, other in pairwise(times))
    assert set(result.cases) == {"test_reference[tiny-learns]", "test_reference[tiny-fast]"}
    fast, learns = (result.cases[f"test_reference[tiny-{name}]"].properties for name in ("fast", "learns"))
    assert fast["runs"] == learns["runs"] == ",".join(ENDED)
    assert (fast["claim"], fast["judged_by"], learns["judged_by"]) == ("system", "interval", "rule")
    for told, statistic in ((fast, "throughput"), (learns, "loss_drop")):
        measured = [record["metrics"][statistic]["value"] for record in records]
        assert [float(each) for each in told["each_run"].split(",")] == pytest.approx(measured, rel=1e-4)
    assert all(len(record["judgements"]) == 2 for record in records)
    assert "    3 runs: " in result.text
    again = user.run("--system", "local", f"--replay={result.session}", code=0)
    assert again.cases["test_reference[tiny-fast]"].properties["each_run"] == fast["each_run"]
    assert again.cases["test_reference[tiny-fast]"].properties["low"] == fast["low"]


@pytest.mark.parametrize("made", [1, 3])
def test_the_option_wins_over_the_marker(user: UserFolder, made: int) -> None:
    user.recipe()
    user.test(MARKED)
    result = user.run("--cluster", "local", "--llmbench-repeat", str(made), code=0)
    assert runs(user) == ENDED[:made]
    assert result.case.properties.get("runs", "tiny") == ",".join(ENDED[:made])


def test_tests_of_one_recipe_share_its_runs(user: UserFolder) -> None:
    """The test that asks for one run is judged by the first; none is made again."""
    user.recipe()
    user.test(MARKED + "\n@pytest.mark.recipe('tiny')\ndef test_once(run):\n    assert len(run.records) == 1\n")
    result = user.run("--cluster", "local", code=0)
    assert runs(user) == ENDED[:2]
    assert [len(result.record(key)["judgements"]) for key in ENDED[:2]] == [2, 1]


def test_one_broken_run_is_an_error_that_names_it(user: UserFolder, watch: type[Watch]) -> None:
    """Runs that could not change the verdict any more are not made."""
    user.recipe(steps=60, references=REFERENCES, options=ASLEEP)
    session = user.start("--cluster", "local", "--llmbench-repeat", "3", "-n0")
    folder = user.wait_for(lambda session: watch.steps(session, "tiny-repeat2") > 2 and session)
    os.kill(watch.pid(folder, "tiny-repeat2", 0), signal.SIGKILL)
    result = user.finish(session, code=pytest.ExitCode.TESTS_FAILED)
    assert {case.properties["verdict"] for case in result.cases.values()} == {"ERROR"}
    assert "run tiny-repeat2 cannot be judged (rank_died)" in result.text
    assert [(result.record(key)["problem"] or {}).get("kind") for key in ENDED] == [None, "rank_died", "not_repeated"]
    assert not (folder / "runs" / "tiny-repeat3" / "task.json").exists()
    assert result.text.count("rank 0") <= result.text.count("rank_died")
    again = user.run("--system", "local", f"--replay={folder}")
    assert {case.properties["verdict"] for case in again.cases.values()} == {"ERROR"}


def test_a_run_that_the_logs_lack_is_an_error(user: UserFolder) -> None:
    """Two recorded runs are not three, and none of those recorded is left out."""
    user.recipe()
    user.test(MARKED)
    folder = user.run("--cluster", "local").session
    user.test()
    few = user.run_here(f"--replay={folder}", "--llmbench-repeat", "3")
    assert few.case.properties["verdict"] == "ERROR"
    assert "3 runs of tiny are asked for, and the logs have 2" in few.text
    for asked in ((), ("--llmbench-repeat", "1")):
        assert user.run_here(f"--replay={folder}", *asked).case.properties["runs"] == "tiny,tiny-repeat2"


def test_a_plan_counts_every_run(user: UserFolder) -> None:
    user.recipe()
    one, three, held = (
        user.run("--cluster", "slurm", "--plan", *options).text
        for options in ((), ("--llmbench-repeat", "3"), ("--llmbench-repeat", "3", "--nodes", "1"))
    )
    assert "at most 0.08333 node-hours" in one
    assert "3 jobs, one per run: at most 0.25 node-hours" in three
    assert "then tiny-repeat2, tiny-repeat3, judged together with it" in three
    assert "at most 0.3333 node-hours" in held
    assert "--time=20" in held


def test_a_session_that_ends_early_gives_every_run_a_record(user: UserFolder, watch: type[Watch]) -> None:
    user.recipe(steps=600, options=ASLEEP)
    session = user.start("--cluster", "local", "--llmbench-repeat", "2")
    folder: Path = user.wait_for(lambda session: watch.steps(session) > 2 and session)
    session.send_signal(signal.SIGINT)
    result = user.finish(session, code=pytest.ExitCode.INTERRUPTED)
    assert result.case.properties["verdict"] == "ERROR"
    assert [result.record(key)["problem"]["kind"] for key in runs(user)] == ["session_ended", "not_repeated"]
    assert folder == result.session


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
    result = user.run("--cluster", "local", *options, "--llmbench-inconclusive", "rerun", code=0)
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
    result = user.run("--cluster", "local", code=pytest.ExitCode.TESTS_FAILED)
    assert made(result) == ["tiny"]
    assert result.cases["test_speed[tiny]"].properties["alpha"] == "0.01"
    assert "about 2 runs would decide; pass `--llmbench-repeat 2`" in result.text
    again = user.run("--system", "local", f"--replay={result.session}", "--llmbench-inconclusive", "rerun")
    assert "No further run was made: logs are replayed" in again.cases["test_speed[tiny]"].message


@pytest.mark.parametrize(("bound", "other", "options", "why"), [
    ("5120 words/s", WIDE, (), "more runs do not decide that"),
    ("5120 words/s", "claim='run'", (), "more runs do not decide that"),
    ("4900 words/s", WIDE, ("--time", "1"), "runs in all, and the time limit of 1 min has room for "),
])  # fmt: skip
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
