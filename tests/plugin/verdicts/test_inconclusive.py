"""A threshold too close to the measured speed to decide: its own verdict, which is neither a pass nor a failure."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import Result, UserFolder

# A real run on one H200, at 456,479 words/s in its judged steps.
RECORDED = Path(__file__).parents[2] / "data" / "h200"
DECIDED = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("opt125m")
@pytest.mark.parametrize("bound", [440_000, 456_000, 457_000, 475_000, 900_000])
def test_speed(run, bound):
    assert run.throughput >= Quantity(bound, "words/s")
"""
ENDS = {440: "PASS", 456: "INCONCLUSIVE", 457: "INCONCLUSIVE", 475: "FAIL", 900: "FAIL"}
REFERENCE = """
name: one_h200
cluster: local
gpus_per_node: 1
gpu:
  model: H200
  memory_gib: 141
  peak_tflops: {{bf16: 989.4}}
  source: its data sheet
references:
  opt125m:
    - name: acceptance
      statistic: throughput
      at_least: {bound} words/s
      {more}
      why: it was measured
      source: this test
      date: 2026-11-23
      applies_to: {{gpu: H200, gpus: 1}}
"""


@pytest.fixture
def recorded(user: UserFolder) -> UserFolder:
    shutil.copytree(RECORDED, user.path / "recorded")
    return user


def judge(user: UserFolder, *options: str) -> Result:
    return user.run("--replay", "recorded", "--llmbench-require-verdict", "no", *options)


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_only_what_is_certain_passes_or_fails(recorded: UserFolder, distribution: str) -> None:
    """A real run meets a bound 3 % below its speed, misses one 3 % above it, and decides on none in between."""
    recorded.test(DECIDED)
    result = judge(recorded, distribution)
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
    recorded.test(DECIDED.replace(", 475_000, 900_000", ""))
    result = judge(recorded, "--llmbench-inconclusive", "warn", "-rs")
    assert result.returncode == 0, result.text
    outcomes = {name.split("-")[-1]: (case.properties["verdict"], case.outcome) for name, case in result.cases.items()}
    assert outcomes == {
        "440000]": ("PASS", "passed"),
        "456000]": ("INCONCLUSIVE", "skipped"),
        "457000]": ("INCONCLUSIVE", "skipped"),
    }
    assert "INCONCLUSIVE: throughput" in result.text


@pytest.mark.parametrize(
    ("bound", "more", "verdict"),
    [
        (440_000, "", "PASS"),
        (456_000, "", "INCONCLUSIVE"),
        (454_000, "", "INCONCLUSIVE"),
        (454_000, "claim: run", "PASS"),
        (454_000, "between_runs: 0.05 %\n      runs: 20", "PASS"),
        (475_000, "", "FAIL"),
    ],
)
def test_a_reference_says_what_its_verdict_is_about(recorded: UserFolder, bound: int, more: str, verdict: str) -> None:
    """The run alone is known better than the system, and a system whose runs are alike better than another."""
    (recorded.path / "one_h200.yaml").write_text(REFERENCE.format(bound=bound, more=more))
    recorded.test()
    result = judge(recorded, "--system", "one_h200.yaml", "-k", "acceptance")
    (case,) = result.cases.values()
    assert case.properties["verdict"] == verdict, result.text
    assert case.properties["claim"] == ("run" if "run" in more.split() else "system")


def test_a_clause_with_an_undecided_test_is_not_met(recorded: UserFolder) -> None:
    recorded.test(DECIDED)
    (recorded.path / "clauses.yaml").write_text('"4.1": ["test_speed[opt125m-440000]", "test_speed[opt125m-456000]"]\n')
    result = judge(recorded, "--llmbench-require", "clauses.yaml", "-k", "440000 or 456000")
    assert "4.1  INCONCLUSIVE" in result.text
    assert result.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_slow_start_longer_than_the_warm_up_rule_is_told(recorded: UserFolder) -> None:
    """The run is faster than its mean, and the table says which of the two numbers was judged."""
    (recorded.path / "one_h200.yaml").write_text(REFERENCE.format(bound=457_000, more="claim: run"))
    recorded.test()
    result = judge(recorded, "--system", "one_h200.yaml", "-k", "acceptance")
    (case,) = result.cases.values()
    assert case.properties["verdict"] == "PASS"
    assert float(case.properties["value"]) < 457_000 < float(case.properties["low"])
    assert "words/s was judged: the steady part of the run, after 23 slow steps" in " ".join(result.text.split())


def test_two_runs_of_one_speed(recorded: UserFolder) -> None:
    recorded.test("""
import pytest

@pytest.mark.recipe("opt125m")
def test_speed(run):
    assert run.throughput >= run.measured("throughput")
""")
    (case,) = judge(recorded).cases.values()
    assert case.properties["verdict"] == "INCONCLUSIVE"
    assert "The intervals of the two runs overlap" in case.message
