"""Groups of nodes that ran the same recipe are compared: a slow one is named with its hosts, and fails."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Result, UserFolder
from tests.plugin.conftest import RECORDED, record_anew

TEST = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("opt125m")
def test_learns(run):
    assert run.loss_drop >= Quantity("0.01 nat")
"""


def slowed(text: str, factor: float, key: str, host: str) -> str:
    """The log of a run as if its machine had been slower, on another host."""
    lines = [json.loads(line) for line in text.splitlines()]
    began = lines[0]["time"]
    for line in lines:
        for name in ("time", "logged"):
            if name in line:
                line[name] = began + (line[name] - began) * factor
        if "seconds" in line:
            line["seconds"] *= factor
    lines[0] |= {"host": host, "token": lines[0]["token"].replace("opt125m", key)}
    return "\n".join(json.dumps(line) for line in lines) + "\n"


def recorded(folder: Path, factors: Mapping[str, float]) -> None:
    """A session folder in which each host is a group, slower by its factor than the one that was measured."""
    plan = json.loads((RECORDED / "session.json").read_text())
    (spec,) = plan["runs"]
    plan["runs"], plan["tests"] = [], []
    source = RECORDED / "runs" / "opt125m"
    for group, (host, factor) in enumerate(factors.items(), start=1):
        key = f"opt125m-group{group}"
        plan["runs"].append({**spec, "key": key, "group": group})
        shutil.copytree(source, folder / "runs" / key)
        log = folder / "runs" / key / "steps" / "rank-00000.jsonl"
        log.write_text(slowed(log.read_text(), factor, key, host))
        job = folder / "runs" / key / "job.json"
        job.write_text(json.dumps({**json.loads(job.read_text()), "key": key, "hosts": [host]}))
        path = folder / "runs" / key / "record.json"
        record = json.loads(path.read_text())
        times = record["timings"]
        times["ended"] = times["submitted"] + (times["ended"] - times["submitted"]) * factor
        path.write_text(json.dumps({**record, "key": key, "hosts": [host], "run_token": f"{record['token']}/{key}"}))
        record_anew(path)
    (folder / "session.json").write_text(json.dumps(plan))


def judge(user: UserFolder, factors: Mapping[str, float], *options: str) -> Result:
    """Judge a recorded session in which groups are slower by these factors."""
    shutil.rmtree(user.path / "recorded", ignore_errors=True)
    (user.path / "recorded").mkdir()
    recorded(user.path / "recorded", factors)
    user.test(TEST)
    return user.run("--replay", "as-recorded:recorded", "--llmbench-require-verdict", "no", *options)


def require(user: UserFolder) -> tuple[str, str]:
    """Require the comparison of the groups, and give the option that does."""
    (user.path / "clauses.yaml").write_text('"4.1": "groups::opt125m-*"\n')
    return "--llmbench-require", "clauses.yaml"


def of_groups(result: Result) -> dict[str, str]:
    cases = [case for case in result.cases.values() if case.properties.get("statistic") == "slower_than_others"]
    return {case.properties["hosts"]: case.properties["verdict"] for case in cases}


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_the_slow_group_is_named(user: UserFolder, distribution: str) -> None:
    result = judge(user, {"n1": 1.0, "n2": 1.002, "n3": 1.08, "n4": 0.999}, distribution, *require(user))
    assert "4.1  FAIL" in result.text
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.text
    assert of_groups(result) == {"n1": "PASS", "n2": "PASS", "n3": "FAIL", "n4": "PASS"}
    case = result.cases["opt125m-group3"]
    assert case.outcome == "failure"
    told = case.properties
    assert float(told["low"]) < 7.95 < float(told["high"]) < 10
    assert (told["unit"], told["threshold"], told["run"]) == ("%", "<= 3 %", "opt125m-group3")
    assert "the steps on n3 (opt125m-group3) are 8 % slower than the median of the 3 other groups" in case.message
    assert "--slurm nodelist=n3" in case.message
    assert "1 failed, 7 passed" in result.text
    assert re.search(r"opt125m-group3 +1 +slower_than_others +8 % .*<= 3 % +FAIL", result.text)
    (judgement,) = [
        each for each in result.record("opt125m-group3")["judgements"] if each["statistic"] == "slower_than_others"
    ]
    assert judgement["verdict"] == "FAIL"
    assert "n3 (opt125m-group3)" in judgement["reason"]


def test_of_two_groups_neither_is_called_ill(user: UserFolder) -> None:
    result = judge(user, {"n1": 1.0, "n2": 1.12})
    assert of_groups(result) == {"n1": "PASS", "n2": "FAIL"}, result.text
    message = result.cases["opt125m-group2"].message
    assert "slower than those on n1 (opt125m-group1)" in message
    assert "two cannot show which is at fault: compare them with a third" in message


def test_a_difference_within_the_noise_is_not_decided(user: UserFolder) -> None:
    """A group that may be slower than allowed neither passes nor fails, and the session fails unless asked not to."""
    factors = {"n1": 1.0, "n2": 1.0, "n3": 1.03}
    result = judge(user, factors)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert of_groups(result) == {"n1": "PASS", "n2": "PASS", "n3": "INCONCLUSIVE"}
    assert "does not decide on the 3 % allowed" in result.cases["opt125m-group3"].message
    warned = judge(user, factors, "--llmbench-inconclusive", "warn")
    assert warned.returncode == 0, warned.text
    assert warned.cases["opt125m-group3"].outcome == "skipped"
    alike = judge(user, factors, "-o", "llmbench_group_tolerance=6 %", *require(user))
    assert "4.1  PASS" in alike.text
    assert (of_groups(alike)["n3"], alike.returncode) == ("PASS", 0)
    assert of_groups(judge(user, factors, "-o", "llmbench_group_tolerance=0.5 %"))["n3"] == "FAIL"


def test_a_group_that_cannot_be_compared_is_named(user: UserFolder) -> None:
    """One whose run is broken leaves too few to compare with, and nothing is silent."""
    judge(user, {"n1": 1.0, "n2": 1.0})
    log = user.path / "recorded" / "runs" / "opt125m-group2" / "steps" / "rank-00000.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:80]))
    result = user.run("--replay", "as-recorded:recorded", "--llmbench-require-verdict", "no")
    assert of_groups(result) == {}
    assert "GROUPS NOT COMPARED: n2 (opt125m-group2): its run cannot be judged" in result.text
    assert "GROUPS NOT COMPARED: n1 (opt125m-group1): it takes two groups" in result.text
    assert "n2 (opt125m-group2)" in result.suite["groups_not_compared"]


def test_a_clause_may_require_it(user: UserFolder) -> None:
    assert "4.1  INCOMPLETE" in judge(user, {"n1": 1.0}, *require(user)).text
