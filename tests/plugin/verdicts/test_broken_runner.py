"""What breaks: records that cannot be kept, a reader, a run, which is told once; odd names. No test waits for ever."""

import re

import pytest

from tests.conftest import UserFolder

BREAKS = """
from pytest_llmbench.session import record_store

def broken(record):
    raise ValueError("no digest of it")

record_store.digest_of_record = broken
"""


def test_what_breaks_while_records_are_kept_is_an_error_of_each_test(user: UserFolder) -> None:
    user.recipe("first")
    user.recipe("second")
    (user.path / "conftest.py").write_text(BREAKS)
    result = user.run("--cluster", "local", "-n2", "-k", "first or second", timeout_s=60)
    assert result.returncode != 0
    assert {case.outcome for case in result.cases.values()} == {"error"}
    assert len(result.cases) == 2
    assert "could not be kept: ValueError: no digest of it" in result.text


def test_a_user_whose_name_is_not_utf_8(user: UserFolder) -> None:
    """It is spelled out in the records."""
    user.recipe()
    user.env |= {"USER": "m\udce9ller", "LOGNAME": "m\udce9ller"}
    assert "1 passed" in user.run("--cluster", "local", "-n0", timeout_s=60, code=0).text


@pytest.mark.parametrize("name", ["r\udce9sultats", "a\\b", "a\nb"])
def test_a_folder_that_slurm_would_take_for_another_is_refused(user: UserFolder, name: str) -> None:
    user.recipe()
    result = user.run("--cluster", "local", "-n0", f"--llmbench-run-dir={user.path}/{name}", timeout_s=60)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "its name has a backslash, a line end, a control character, or bytes that are not UTF-8" in result.text
    assert result.found is None


# The runner breaks in an unforeseen way whenever it looks into one run's folder.
BREAKS_OVER_ONE = """
from pytest_llmbench.session import following

def read_report(folder, read=following.read_report):
    if folder.name == "bad":
        raise UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "odd bytes")
    return read(folder)

following.read_report = read_report
"""


def test_what_breaks_over_one_run_does_not_end_the_others(user: UserFolder) -> None:
    """The one is an ERROR that says where we broke, and those after it are run and judged."""
    for name in ("bad", "tiny"):
        user.recipe(name)
    user.test()
    (user.path / "conftest.py").write_text(BREAKS_OVER_ONE)
    result = user.run("--cluster", "local", "-k", "bad or tiny")
    assert result.cases["test_reference[bad-learns]"].outcome == "error", result.text
    assert "odd bytes" in result.cases["test_reference[bad-learns]"].message
    assert result.record("bad")["problem"]["kind"] == "harness"
    assert result.cases["test_reference[tiny-learns]"].outcome == "passed", result.text


def test_folders_may_be_named_like_patterns(user: UserFolder) -> None:
    """Submitit replaces %j and the like in paths, and does not here."""
    user.recipe()
    user.run("--cluster", "local", "-k", "tiny", "--llmbench-run-dir", "reports/%j-%t %A%2F", code=0)
    assert [path.name for path in (user.path / "reports").iterdir()] == ["%j-%t %A%2F"]


THREE_TESTS = "".join(f"def test_{name}(run):\n    assert run.steps\n" for name in ("one", "two", "three"))


def test_a_broken_run_is_told_once(user: UserFolder) -> None:
    """The first of its tests has the whole error, the others the first line and the name of that test."""
    user.recipe(optimizer={"learning_rate": 1.0e6, "warmup_steps": 0})
    user.test(THREE_TESTS)
    result = user.run("--cluster", "local", "-n2", "-k", "tiny")
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
    look = ("--cluster", "local", "--collect-only", "-k")
    result = user.run_here(*look, "gpt_tinny", code=pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "llmbench: -k gpt_tinny matches no recipe; did you mean gpt_tiny?" in result.text
    hint = "llmbench: -k zzz matches no recipe; the tests here have gpt_small, gpt_tiny"
    assert hint in user.run_here(*look, "zzz").text
    user.test("def test_reference(run, reference): pass\n")
    user.recipe("gpt_small", references=[])
    hint = "llmbench: -k gpt_small: the tests here have no case of that recipe, such as for want of a reference in it"
    assert hint in user.run_here(*look, "gpt_small").text
    for fine in ("gpt_tiny", "gpt_tiny or gpt_tinny", "gpt_tiny and not test_one"):
        found = user.run_here(*look, fine)
        assert "matches no recipe" not in found.text
        assert found.returncode == 0, found.text
