"""What a user's threshold ends in: one verdict, the right JUnit element, a message that says it all."""

import pytest

from pytest_llmbench.core.quantity import for_people
from tests.conftest import UserFolder

THRESHOLDS = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("tiny")
def test_slow_enough(run):
    assert run.throughput >= Quantity("1 words/s")

@pytest.mark.recipe("tiny")
def test_too_fast(run):
    assert run.throughput >= Quantity("900M words/s")

@pytest.mark.recipe("tiny")
def test_too_long(run):
    assert run.time_for_20m_tokens <= Quantity("1 ms")

@pytest.mark.recipe("tiny")
def test_wrong_unit(run):
    assert run.throughput >= Quantity("1 samples/s")

@pytest.mark.recipe("tiny")
def test_no_unit(run):
    assert run.throughput >= 1

@pytest.mark.recipe("tiny")
def test_no_meaning(run):
    assert run.mfu >= Quantity("40 %")

@pytest.mark.recipe("tiny")
def test_skipped_inside(run):
    pytest.skip("not today")
"""


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_every_test_ends_in_one_verdict(user: UserFolder, distribution: str) -> None:
    """Slow is a failure, unjudgeable is an error, and the run behind all of them happens once."""
    user.recipe()
    user.test(THRESHOLDS)
    result = user.run("--cluster", "local", distribution, "-k", "test_")
    cases = result.cases
    verdicts = {name.split("[")[0]: (case.properties["verdict"], case.outcome) for name, case in cases.items()}
    assert verdicts == {
        "test_slow_enough": ("PASS", "passed"),
        "test_too_fast": ("FAIL", "failure"),
        "test_too_long": ("FAIL", "failure"),
        "test_wrong_unit": ("ERROR", "error"),
        "test_no_unit": ("ERROR", "error"),
        "test_no_meaning": ("ERROR", "error"),
        "test_skipped_inside": ("SKIP", "skipped"),
    }
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert len(list((result.session / "runs").iterdir())) == 1
    judged = {entry["test"].split("::")[1]: entry["verdict"] for entry in result.record()["judgements"]}
    assert len(judged) == len(cases)

    slow = cases["test_too_fast[tiny]"].message
    value = result.record()["metrics"]["throughput"]["value"]
    assert f"measured {for_people(value)} words/s is " in slow
    assert "% of the threshold 900,000,000 words/s" in slow
    assert "run record: reports/" in slow
    assert "log: reports/" in slow
    assert " times the threshold 1 ms" in cases["test_too_long[tiny]"].message
    assert "token rate" in cases["test_wrong_unit[tiny]"].message
    assert "has no unit" in cases["test_no_unit[tiny]"].message
    assert "mfu" in cases["test_no_meaning[tiny]"].message


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_properties_are_plain_and_complete(user: UserFolder, distribution: str) -> None:
    """A JUnit test case says what ran where, what was measured, and against what."""
    user.recipe()
    user.test()
    result = user.run("--cluster", "local", distribution, "-k", "tiny", "--junitxml=mine.xml")
    properties = result.case.properties
    assert properties["recipe"] == "tiny"
    assert properties["system"] == "local"
    assert (properties["nodes"], properties["ranks"], properties["gpus"]) == ("1", "2", "0")
    assert properties["hosts"]
    assert properties["job_id"].isdigit()
    assert (properties["statistic"], properties["unit"]) == ("loss_drop", "nat")
    assert float(properties["value"]) >= 0.01
    assert properties["reference"] == "learns"
    assert properties["threshold"] == ">= 0.01 nat"
    assert properties["verdict"] == "PASS"
    assert (user.path / "mine.xml").read_bytes() == (result.session / "junit.xml").read_bytes()
    assert result.returncode == 0, result.text
