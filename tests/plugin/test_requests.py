"""All the ways in which pytest lets a test ask for a run: each ends in one verdict, and the run happens once."""

import pytest

from pytest_llmbench.core.quantity import for_people
from tests.conftest import UserFolder

CONFTEST = """
import pytest

@pytest.fixture
def words_per_s(run):
    return run.throughput

@pytest.fixture
def fails_before():
    raise RuntimeError("the licence server is away")

@pytest.fixture
def fails_after(run):
    yield
    raise RuntimeError("the licence was not given back")
"""

TESTS = """
import pytest
from pytest_llmbench import Quantity

pytestmark = pytest.mark.recipe("tiny")

class TestClass:
    def test_method(self, run):
        assert run.loss_drop >= Quantity("0 nat")

"""
SLOW = '@pytest.mark.xfail(reason="known to be slow", strict=True)\n'
TWO = '@pytest.mark.parametrize("floor", ["1 words/s", "2 words/s"])\n'
MONDAYS = '@pytest.mark.skip(reason="not on Mondays")\n'
LIMIT = 'run.throughput >= Quantity("{}")'
# A function, the markers before it, its fixtures, its body, its verdict and what the XML says of it.
WAYS = {
    "reference_alone": (
        "", "reference, request", 'assert request.getfixturevalue("run").loss_drop in reference', "PASS", "passed",
    ),
    "reference_unasked": ("", "reference", 'assert reference.name == "learns"', "ERROR", "error"),
    "through_a_fixture": ("", "words_per_s", 'assert words_per_s > Quantity("1 words/s")', "PASS", "passed"),
    "parametrized": (TWO, "run, floor", "assert run.throughput >= Quantity(floor)", "PASS", "passed"),
    "expected_to_fail": (SLOW, "run", f"assert {LIMIT.format('900M words/s')}", "SKIP", "skipped"),
    "unexpectedly_fast": (SLOW, "run", f"assert {LIMIT.format('1 words/s')}", "FAIL", "failure"),
    "skipped": (MONDAYS, "run", "pass", "SKIP", "skipped"),
    "setup_fails_before": ("", "fails_before, run", "pass", "ERROR", "error"),
    "teardown_fails": ("", "fails_after", "pass", "PASS", "error"),  # each by its own verdict
    "asserts_nothing": ("", "run", "pass", "PASS", "passed"),
    "fails_in_words": ("", "run", 'pytest.fail("too warm in here")', "FAIL", "failure"),
    "two_comparisons": (
        "", "run", f'assert {LIMIT.format("1 words/s")} and run.step_time <= Quantity("1 h")', "PASS", "passed",
    ),
    "by_name_at_run_time": ("", "request", 'request.getfixturevalue("run")', None, "failure"),
    "is_broken": ("", "run", '{}["no such key"]', "ERROR", "error"),
    "other_marker_wins_nothing": ("", "", "pass", None, "passed"),
    "too_fast": ("", "run", f"assert {LIMIT.format('900M words/s')}", "FAIL", "failure"),
    "too_long": ("", "run", 'assert run.time_for_20m_tokens <= Quantity("1 ms")', "FAIL", "failure"),
    "wrong_unit": ("", "run", f"assert {LIMIT.format('1 samples/s')}", "ERROR", "error"),
    "no_meaning": ("", "run", 'assert run.mfu >= Quantity("40 %")', "ERROR", "error"),
}  # fmt: skip
CASES = {
    "reference_alone": ["tiny-learns"], "reference_unasked": ["tiny-learns"],
    "parametrized": ["tiny-1 words/s", "tiny-2 words/s"], "by_name_at_run_time": [],
    "other_marker_wins_nothing": [],
}  # fmt: skip


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_every_way_to_ask_ends_in_one_verdict(user: UserFolder, distribution: str) -> None:
    """Fixtures of the user's, classes, parameters, marks, and what fails around the test's own body."""
    user.recipe()
    tests = (f"{marks}def test_{name}({uses}):\n    {body}\n" for name, (marks, uses, body, *_) in WAYS.items())
    user.test(TESTS + "".join(tests))
    user.test(CONFTEST, "conftest.py")
    result = user.run("--cluster", "local", distribution)
    assert "INTERNALERROR" not in result.text
    cases = result.cases
    found = {name: (case.properties.get("verdict"), case.outcome) for name, case in cases.items()}
    expected: dict[str, tuple[str | None, str]] = {"TestClass::test_method[tiny]": ("PASS", "passed")}
    for way, (*_, verdict, outcome) in WAYS.items():
        ids = [f"[{each}]" for each in CASES.get(way, ["tiny"])] or [""]
        expected |= {f"test_{way}{each}": (verdict, outcome) for each in ids}
    assert found == expected
    reasons = {name.split("[")[0]: case.properties.get("reason", "") for name, case in cases.items()}
    assert reasons["test_expected_to_fail"] == "known to be slow"
    assert "XPASS(strict)" in reasons["test_unexpectedly_fast"]
    assert "not on Mondays" in reasons["test_skipped"]
    assert reasons["test_setup_fails_before"] == "the licence server is away"
    assert reasons["test_fails_in_words"] == "too warm in here"
    assert cases["test_two_comparisons[tiny]"].properties["statistic"] == "step_time"
    assert cases["test_through_a_fixture[tiny]"].properties["threshold"] == "> 1 words/s"
    assert "value" not in cases["test_asserts_nothing[tiny]"].properties
    assert "not in getfixturevalue" in cases["test_by_name_at_run_time"].message
    value = for_people(result.record()["metrics"]["throughput"]["value"])
    told = (f"measured {value} words/s is ", "% of the threshold 900,000,000 words/s", "record: reports/")
    assert [words for words in (*told, "log: reports/") if words not in cases["test_too_fast[tiny]"].message] == []
    assert " times the threshold 1 ms" in cases["test_too_long[tiny]"].message
    assert "token rate" in cases["test_wrong_unit[tiny]"].message
    assert "mfu" in cases["test_no_meaning[tiny]"].message
    # The run happened once, and its record knows the verdicts of all tests that got to it.
    assert result.session is not None
    assert [folder.name for folder in (result.session / "runs").iterdir()] == ["tiny"]
    judged = {entry["test"].split("::", 1)[1]: entry["verdict"] for entry in result.record()["judgements"]}
    assert judged["TestClass::test_method[tiny]"] == "PASS"
    assert len(judged) == len(cases) - 2  # two have no run; one that was skipped and one that broke would have had it
    assert result.returncode == pytest.ExitCode.TESTS_FAILED


OVERRIDES = """
import pytest
from pytest_llmbench import Quantity

@pytest.fixture
def reference(reference, request):
    request.node.user_properties.append(("site", "ours"))
    return reference

@pytest.fixture
def run(run):
    return run
"""


def test_overriding_fixtures_of_ours_keeps_the_matrix(user: UserFolder) -> None:
    """A conftest may wrap `run` and `reference`: the cases are the same, and the wrappers are used."""
    user.recipe()
    user.test()
    user.test(OVERRIDES, "conftest.py")
    result = user.run("--cluster", "local", "-n0", "-k", "tiny", code=0)
    assert (result.case.name, result.case.properties["site"]) == ("test_reference[tiny-learns]", "ours")
    assert result.case.properties["verdict"] == "PASS"


def test_a_reference_of_the_users_own_is_not_multiplied(user: UserFolder) -> None:
    """A `reference` that has nothing to do with ours leaves one case per recipe."""
    user.test("import pytest\n\n@pytest.fixture\ndef reference():\n    return 1\n", "conftest.py")
    user.recipe()
    user.test()
    result = user.run_here("--cluster", "local", "--collect-only", "-q", "-k", "tiny")
    assert "test_user.py::test_reference[tiny]\n" in result.text


def test_our_reference_with_another_run_is_refused(user: UserFolder) -> None:
    user.test("import pytest\n\n@pytest.fixture\ndef run():\n    return 1\n", "conftest.py")
    user.recipe()
    user.test()
    result = user.run_here("--cluster", "local", code=pytest.ExitCode.INTERRUPTED)
    assert "test_reference: the fixture `reference` of pytest-llmbench needs its `run`" in result.text
