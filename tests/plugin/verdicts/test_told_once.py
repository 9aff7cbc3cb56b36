"""A broken run is told once, and an expression that names no recipe gets a hint."""

import re

import pytest

from tests.conftest import UserFolder

THREE_TESTS = """
def test_one(run):
    assert run.steps

def test_two(run):
    assert run.steps

def test_three(run):
    assert run.steps
"""


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_broken_run_is_told_once(user: UserFolder, distribution: str) -> None:
    """The first of its tests has the whole error, the others the first line and the name of that test."""
    user.recipe(optimizer={"learning_rate": 1.0e6, "warmup_steps": 0})
    user.test(THREE_TESTS)
    result = user.run("--cluster", "local", distribution, "-k", "tiny")
    assert {case.outcome for case in result.cases.values()} == {"error"}
    told = result.text.partition("= ERRORS =")[2].partition("= llmbench")[0]
    assert told.count("run tiny cannot be judged (") == 3
    assert told.count("run record: ") == 1
    (first,) = set(re.findall(r"record and log: see the error of (test_user.py::test_\w+\[tiny\])", told))
    messages = {name: case.message for name, case in result.cases.items()}
    assert {name for name, message in messages.items() if "run record: " in message} == {first.partition("::")[2]}
    assert re.search(r"^on: \S+ \(pid \d+\)$", told, re.MULTILINE)


def test_an_expression_that_names_no_recipe_gets_a_hint(user: UserFolder) -> None:
    user.recipe("gpt_tiny")
    user.recipe("gpt_small")
    user.test(THREE_TESTS)
    result = user.run("--cluster", "local", "-n0", "-k", "gpt_tinny", "--collect-only")
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "llmbench: -k gpt_tinny matches no recipe; did you mean gpt_tiny?" in result.text
    nothing_close = user.run("--cluster", "local", "-n0", "-k", "zzz", "--collect-only").text
    assert "llmbench: -k zzz matches no recipe; recipes: " in nothing_close
    for fine in ("gpt_tiny", "gpt_tiny or gpt_tinny", "gpt_tiny and not test_one"):
        assert "matches no recipe" not in user.run("--cluster", "local", "-n0", "-k", fine, "--collect-only").text
