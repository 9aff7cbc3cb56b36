"""A comparison judges where `assert` asks for its truth. One that decides nothing is an ERROR of its test."""

import pytest

from tests.conftest import TEST_REFERENCES, Result, UserFolder
from tests.plugin.conftest import one_h200

pytestmark = pytest.mark.usefixtures("recorded")
HEAD = """
import contextlib
import operator
import pytest
from pytest_llmbench import Quantity

FAST, SLOW, CLOSE = (Quantity(n, "words/s") for n in (430_000, 900_000, 456_000))
LEARNS = Quantity("0.01 nat")
KEPT = []

def check(number, bound):
    assert number >= bound

@pytest.fixture
def speed(run):
    return run.throughput

@pytest.fixture
def forgotten(run):
    run.throughput >= FAST

@pytest.fixture
def forgotten_at_the_end(run):
    yield
    run.throughput >= SLOW
"""
SPEED_NEEDED, NO_SPEED_NEEDED = (("--llmbench-require-verdict", word) for word in ("yes", "no"))
NOT_ASKED, NOT_HELD = "judged nothing: the test never asked whether it holds", "does not hold, and the test passed"
ONLY_HALF = "does not decide on the threshold"
# The body of a test, its verdict, and a part of the reason.
CASES = {
    # Comparisons that look as if they judged.
    "bare": ("run.throughput >= SLOW", "ERROR", NOT_ASKED),
    "bare_that_holds": ("run.throughput >= FAST", "ERROR", NOT_ASKED),
    "kept": ("KEPT.append(run.throughput >= SLOW)", "ERROR", NOT_ASKED),
    "named": ("fast = run.throughput >= SLOW", "ERROR", NOT_ASKED),
    "in_a_list": ("assert [run.throughput >= SLOW]", "ERROR", NOT_ASKED),
    "in_parentheses_with_its_message": ('assert (run.throughput >= SLOW, "too slow")', "ERROR", NOT_ASKED),
    "is_not_none": ("assert (run.throughput >= SLOW) is not None", "ERROR", NOT_ASKED),
    "printed": ("print(f'{run.throughput >= SLOW}')", "ERROR", NOT_ASKED),
    "in_a_fixture": ("assert run.throughput >= FAST", "ERROR", NOT_ASKED),
    "at_the_end": ("assert run.throughput >= FAST", "ERROR", NOT_ASKED),
    "or_of_two": (
        "fast, learns = run.throughput >= FAST, run.loss_drop >= LEARNS\n    assert learns or fast", "ERROR", NOT_ASKED,
    ),
    "or_of_a_slow_one": (
        "fast, learns = run.throughput >= SLOW, run.loss_drop >= LEARNS\n    assert fast or learns", "ERROR", NOT_HELD,
    ),
    "or_true": ("assert run.throughput >= SLOW or True", "ERROR", NOT_HELD),
    "if": ("if run.throughput >= SLOW:\n        pass", "ERROR", NOT_HELD),
    "truth_that_is_dropped": ("bool(run.throughput >= SLOW)", "ERROR", NOT_HELD),
    "not": ("assert not run.throughput >= SLOW", "ERROR", NOT_HELD),
    "is_false": ("assert (run.throughput >= SLOW) == False", "ERROR", NOT_HELD),
    "raises": ("with pytest.raises(AssertionError):\n        assert run.throughput >= SLOW", "ERROR", NOT_HELD),
    "suppressed": (
        "with contextlib.suppress(AssertionError):\n        check(run.throughput, SLOW)", "ERROR", NOT_HELD,
    ),
    "undecided_and_suppressed": (
        "with contextlib.suppress(Exception):\n        check(run.throughput, CLOSE)", "INCONCLUSIVE", ONLY_HALF,
    ),
    "contained": ("run.losses in None", "ERROR", "NoneType"),
    "and_of_bits": ("assert (run.throughput >= FAST) & (run.loss_drop >= LEARNS)", "ERROR", "unsupported operand"),
    "sum": ("assert sum([run.throughput >= FAST])", "ERROR", "unsupported operand"),
    "without_unit": ("assert run.throughput >= 430_000", "ERROR", "has no unit"),
    "twice_the_number": ("assert run.throughput * 2 >= SLOW", "ERROR", "unsupported operand"),
    "approx": ("assert run.throughput == pytest.approx(456_479)", "FAIL", ""),
    # Ways to ask.
    "plain": ("assert run.throughput >= FAST", "PASS", ""),
    "plain_slow": ("assert run.throughput >= SLOW", "FAIL", "measured 456,479 words/s"),
    "plain_close": ("assert run.throughput >= CLOSE", "INCONCLUSIVE", ONLY_HALF),
    "mirrored": ("assert SLOW <= run.throughput", "FAIL", "measured 456,479 words/s"),
    "chained": ("assert FAST <= run.throughput <= SLOW", "PASS", ""),
    "chained_too_fast": ("assert FAST <= run.throughput <= FAST", "FAIL", "above the threshold"),
    "strict": ("assert run.throughput > CLOSE", "INCONCLUSIVE", ONLY_HALF),
    "helper": ("check(run.throughput, SLOW)", "FAIL", ""),
    "walrus": ("assert (fast := run.throughput >= FAST)\n    assert fast", "PASS", ""),
    "all": ("assert all(run.throughput >= bound for bound in (FAST, SLOW))", "FAIL", ""),
    "by_truth": ("assert bool(run.throughput >= FAST) is True", "PASS", ""),
    "equals_true": ("assert (run.throughput >= SLOW) == True", "FAIL", ""),
    "by_function": ("assert operator.ge(run.throughput, SLOW)", "FAIL", ""),
    "skipped_by_it": ("if run.throughput < SLOW:\n        pytest.skip('slow')", "SKIP", "slow"),
    "failed_by_it": ("if not run.throughput >= SLOW:\n        pytest.fail('slow')", "FAIL", "slow"),
    # Conversions, and numbers among each other.
    "converted": ("assert run.throughput.to('tokens/s') >= Quantity(456_000, 'tokens/s')", "INCONCLUSIVE", ONLY_HALF),
    "converted_time": ("assert run.step_time.to('ms').to('s') <= Quantity('1 ms')", "FAIL", "1,146 times"),
    "a_little_below": (
        "t = run.throughput\n    assert t >= Quantity(f'{t.value * 0.9999} words/s')", "INCONCLUSIVE", ONLY_HALF,
    ),
    "converted_a_little_below": (
        "t = run.throughput.to('tokens/s')\n    assert t >= Quantity(f'{t.value * 0.9999} tokens/s')", "INCONCLUSIVE",
        ONLY_HALF,
    ),
    "max": ("assert max(run.throughput, run.throughput) >= Quantity('1 words/s')", "PASS", ""),
    "max_slow": ("assert max([run.throughput, run.throughput]) >= SLOW", "FAIL", ""),
    "min": ("assert min(run.throughput, run.throughput) >= FAST", "PASS", ""),
    "sorted": ("assert sorted([run.throughput, run.throughput])[0] >= FAST", "PASS", ""),
    "sorted_often": (
        "for _ in range(99):\n        sorted([run.throughput] * 2)\n    assert run.throughput >= FAST", "PASS", "",
    ),
    "two_runs": ("assert run.throughput >= run.measured('throughput')", "INCONCLUSIVE", "intervals of the two runs"),
    "two_runs_strictly": ("assert run.throughput > run.measured('throughput')", "INCONCLUSIVE", "intervals of the two"),
}  # fmt: skip
FIXTURES = {"in_a_fixture": "run, forgotten", "at_the_end": "run, forgotten_at_the_end"}
JUDGE_NO_SPEED = {
    "at_most_a_rate": "assert run.throughput <= SLOW",
    "below_a_rate": "assert SLOW > run.throughput",
    "at_least_a_time": "assert run.step_time >= Quantity('1 ms')",
    "another_measured_number": "assert run.step_time <= run.warm_up_time",
    "largest_of_two": "assert max(run.throughput, FAST) is not None",
}


def judge(user: UserFolder, tests: str, *options: str) -> Result:
    user.test(tests)
    return user.run("--replay=as-recorded:recorded", "-p", "no:warnings", *options)


def as_tests(cases: dict[str, str]) -> str:
    made = (
        f'\n@pytest.mark.recipe("opt125m")\ndef test_{name}({FIXTURES.get(name, "run")}):\n    {body}\n'
        for name, body in cases.items()
    )
    return HEAD + "".join(made)


def test_each_way_to_write_it(user: UserFolder) -> None:
    """What decides nothing is an ERROR, what is close is INCONCLUSIVE, and no slow run passes."""
    result = judge(user, as_tests({name: body for name, (body, _, _) in CASES.items()}), *NO_SPEED_NEEDED)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    ends = {name: result.cases[f"test_{name}[opt125m]"] for name in CASES}
    assert {name: end.properties["verdict"] for name, end in ends.items()} == {
        name: verdict for name, (_, verdict, _) in CASES.items()
    }
    for name, (_, verdict, reason) in CASES.items():
        assert reason in ends[name].message, name
        assert ends[name].outcome == {"PASS": "passed", "ERROR": "error", "SKIP": "skipped"}.get(verdict, "failure")
    line = 2 + (user.path / "test_user.py").read_text().splitlines().index("def test_bare(run):")
    assert f"{line}: `throughput 456,479 words/s >= 900,000 words/s` judged nothing" in ends["bare"].message
    converted = ends["converted"].properties
    assert (converted["unit"], converted["judged_by"]) == ("tokens/s", "interval")
    assert float(converted["low"]) < 456_000 < float(converted["high"])


def test_a_bound_that_each_slow_run_meets(user: UserFolder) -> None:
    result = judge(user, as_tests(JUDGE_NO_SPEED), *SPEED_NEEDED)
    assert result.returncode == 10, result.text
    assert "NO SPEED WAS JUDGED" in result.text
    *others, last = (f"test_user.py::test_{name}[opt125m]" for name in JUDGE_NO_SPEED if name != "largest_of_two")
    assert f"{', '.join(others)} and {last} are bounds that every slow run meets" in result.text
    both = judge(user, as_tests({"both": "assert FAST <= run.throughput <= SLOW"}), *SPEED_NEEDED)
    assert both.returncode == 0, both.text


def test_a_reference_that_each_slow_run_meets(user: UserFolder) -> None:
    system = one_h200(user, ceiling={"at_most": "900K words/s"})
    result = judge(user, TEST_REFERENCES, system, "-k", "ceiling or azure", *SPEED_NEEDED)
    assert result.returncode == 10, result.text
    assert "ceiling is a bound that every slow run meets" in result.text
    assert "Bound a rate by at_least, and a time by at_most" in result.text


def test_a_number_of_another_test(user: UserFolder) -> None:
    body = {
        "first": "KEPT.append(run.throughput)\n    assert KEPT[0] >= FAST",
        "second": "assert KEPT[0] >= SLOW",
        "third": "assert KEPT[0].value >= 430_000",
    }
    result = judge(user, as_tests(body), *NO_SPEED_NEEDED)
    ends = {name: result.cases[f"test_{name}[opt125m]"].properties["verdict"] for name in body}
    assert ends == {"first": "PASS", "second": "ERROR", "third": "PASS"}
    assert "was measured for a test that is over" in result.text


def test_a_reference_that_the_test_leaves_unasked(user: UserFolder) -> None:
    """The report gives the threshold of the reference beside the verdict, so a PASS has to be one on that threshold."""
    system = one_h200(user, quick={"at_least": "900K words/s"}, usual={"at_least": "430K words/s"})
    cases = {
        "nothing": ("pass", "ERROR", "ERROR"),
        "the_number_alone": ("assert run.throughput.value > 0", "ERROR", "ERROR"),
        "another_bound": ("assert run.throughput >= Quantity('1 words/s')", "ERROR", "ERROR"),
        "another_statistic": ("assert run.loss_drop >= LEARNS", "ERROR", "ERROR"),
        "in": ("assert run.throughput in reference", "FAIL", "PASS"),
        "bound": ("assert run.throughput >= reference.at_least", "FAIL", "PASS"),
        "strict": ("assert reference.at_least < run.throughput", "FAIL", "PASS"),
        "converted": ("assert run.throughput.to('tokens/s') in reference", "FAIL", "PASS"),
    }
    tests = as_tests({name: body for name, (body, _, _) in cases.items()}).replace("(run)", "(run, reference)")
    result = judge(user, tests, system, "-k", "quick or usual", *NO_SPEED_NEEDED)
    ends = {
        name: tuple(result.cases[f"test_{name}[opt125m-{which}]"].properties["verdict"] for which in ("quick", "usual"))
        for name in cases
    }
    assert ends == {name: (quick, usual) for name, (_, quick, usual) in cases.items()}
    assert "reference quick was asked for, and `throughput >= 900,000 words/s` was not" in result.text


def test_a_python_without_assertions_is_refused(user: UserFolder) -> None:
    """With -O, helper files lose their assertions: pytest rewrites `assert` in test files alone."""
    user.test("def check(number, bound):\n    assert number >= bound\n", "bounds.py")
    user.test(as_tests({"slow": "from bounds import check\n    check(run.throughput, SLOW)"}))
    user.env["PYTHONOPTIMIZE"] = "1"
    result = user.run_new("--replay=as-recorded:recorded", "-Wdefault", code=pytest.ExitCode.USAGE_ERROR)
    assert "drop `assert`: leave them out" in result.text
