"""Which recipes a test runs for that names none."""

import re
from pathlib import Path

import pytest

from tests.conftest import UserFolder

TESTS = """
import pytest

def test_unmarked(run): pass

def test_each_reference(run, reference): pass

@pytest.mark.recipe("*")
def test_every(run): pass

@pytest.mark.recipe("opt125m")
def test_named(run): pass
"""
SUITE = Path(__file__).parents[3] / "suites" / "training"


def recipes(text: str, test: str) -> set[str]:
    return set(re.findall(rf"::{test}\[(\w+)", text))


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_own_recipes_come_first(user: UserFolder, distribution: str) -> None:
    """Where there are any, a test without the marker takes them alone; one with it takes what it names."""
    user.recipe()
    user.recipe("other")
    user.test(TESTS)
    text = user.run("--collect-only", "-q", "--cluster", "local", distribution).text
    assert recipes(text, "test_unmarked") == recipes(text, "test_each_reference") == {"tiny", "other"}
    assert {"tiny", "other", "opt125m", "opt175b"} < recipes(text, "test_every")
    assert recipes(text, "test_named") == {"opt125m"}


def test_without_own_recipes_it_is_every_one(user: UserFolder) -> None:
    user.test(TESTS)
    text = user.run("--collect-only", "-q", "--cluster", "local").text
    assert recipes(text, "test_unmarked") == recipes(text, "test_every") > {"opt125m", "opt175b"}


def test_the_shipped_suite_takes_every_one(user: UserFolder) -> None:
    user.recipe()
    text = user.run(
        "--collect-only", "-q", "--cluster", "local", str(SUITE), f"--rootdir={user.path}", "-c", "pytest.ini"
    ).text
    assert {"tiny", "opt125m"} < recipes(text, "test_reference")
