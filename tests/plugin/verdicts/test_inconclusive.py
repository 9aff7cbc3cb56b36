"""A threshold too close to the measured speed to decide: its own verdict, which is neither a pass nor a failure."""

from typing import Any

import pytest

from tests.conftest import Result, UserFolder
from tests.plugin.conftest import one_h200

DECIDED = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("opt125m")
@pytest.mark.parametrize("bound", [430_000, 456_000, 457_000, 490_000, 900_000])
def test_speed(run, bound):
    assert run.throughput >= Quantity(bound, "words/s")
"""
ENDS = {430: "PASS", 456: "INCONCLUSIVE", 457: "INCONCLUSIVE", 490: "FAIL", 900: "FAIL"}


def judge(user: UserFolder, *options: str) -> Result:
    return user.run("--replay", "as-recorded:recorded", "--llmbench-require-verdict", "no", *options)


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_only_what_is_certain_passes_or_fails(recorded: UserFolder, distribution: str) -> None:
    """A real run meets a bound 6 % below its speed, misses one 7 % above it, and decides on none in between.

    A clause with a test that was not decided is not met.
    """
    recorded.test(DECIDED)
    (recorded.path / "clauses.yaml").write_text('"4.1": ["test_speed[opt125m-430000]", "test_speed[opt125m-456000]"]\n')
    result = judge(recorded, distribution, "--llmbench-require", "clauses.yaml")
    assert "4.1  INCONCLUSIVE" in result.text
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.text
    ends = {int(name.split("-")[-1][:3]): case.properties["verdict"] for name, case in result.cases.items()}
    assert ends == ENDS
    undecided = next(case for name, case in result.cases.items() if "456000" in name)
    assert undecided.outcome == "failure"
    assert undecided.message.startswith(
        "throughput 456,479 words/s does not decide on the threshold >= 456,000 words/s: "
    )
    assert "runs of this system are between " in undecided.message
    assert "Runs of one system differ by more than that (0.3 % between runs)" in undecided.message
    told = undecided.properties
    assert float(told["low"]) < 456_000 < float(told["high"])
    assert (told["judged_by"], told["claim"], told["alpha"]) == ("interval", "system", "0.01")
    assert told["interval_rule"]
    assert told["threshold"] == ">= 456000 words/s"
    judgements = result.record("opt125m")["judgements"]
    assert sorted(each["verdict"] for each in judgements) == sorted(ENDS.values())
    assert "INCONCLUSIVE" in result.text


def test_a_warning_is_no_pass(recorded: UserFolder) -> None:
    """The session does not fail, and the test is skipped with the reason."""
    recorded.test(DECIDED.replace(", 490_000, 900_000", ""))
    result = judge(recorded, "--llmbench-inconclusive", "warn", "-rs")
    assert result.returncode == 0, result.text
    outcomes = {name.split("-")[-1]: (case.properties["verdict"], case.outcome) for name, case in result.cases.items()}
    assert outcomes == {
        "430000]": ("PASS", "passed"),
        "456000]": ("INCONCLUSIVE", "skipped"),
        "457000]": ("INCONCLUSIVE", "skipped"),
    }
    assert "INCONCLUSIVE: throughput" in result.text


def test_a_reference_says_what_its_verdict_is_about(recorded: UserFolder) -> None:
    """The run alone is known better than the system, and a system whose runs are alike better than another."""
    claimed: dict[str, tuple[str, dict[str, Any], str]] = {
        "low": ("430K words/s", {}, "PASS"),
        "near": ("456K words/s", {}, "INCONCLUSIVE"),
        "below": ("454K words/s", {}, "INCONCLUSIVE"),
        "of-the-run": ("454K words/s", {"claim": "run", "runs": 5}, "PASS"),
        "of-a-short-run": ("454K words/s", {"claim": "run"}, "INCONCLUSIVE"),
        "of-runs-alike": ("454K words/s", {"between_runs": "0.05 %", "runs": 20}, "PASS"),
        "high": ("490K words/s", {}, "FAIL"),
        "steady": ("457K words/s", {"claim": "run", "runs": 5}, "PASS"),
    }
    system = one_h200(recorded, **{name: {"at_least": bound, **more} for name, (bound, more, _) in claimed.items()})
    recorded.test()
    result = judge(recorded, system, "-k", " or ".join(claimed))
    told = {name: result.cases[f"test_reference[opt125m-{name}]"].properties for name in claimed}
    assert {name: each["verdict"] for name, each in told.items()} == {
        n: verdict for n, (*_, verdict) in claimed.items()
    }
    assert {name for name, each in told.items() if each["claim"] == "run"} == {"of-the-run", "of-a-short-run", "steady"}
    # The run is faster than its mean, and the table says which of the two numbers was judged.
    assert float(told["steady"]["value"]) < 457_000 < float(told["steady"]["low"])
    assert "words/s was judged: the steady part of the run, after 23 slow steps" in " ".join(result.text.split())
