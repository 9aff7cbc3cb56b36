"""An exception in the thread that makes the runs, and names that are not UTF-8: no test waits for ever."""

import pytest

from tests.conftest import UserFolder

BREAKS = """
from pytest_llmbench.session import record_store

def broken(self, record):
    raise ValueError("no record can be kept")

record_store.RecordStore.keep = broken
"""


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_what_breaks_while_records_are_kept_is_an_error_of_each_test(user: UserFolder, distribution: str) -> None:
    user.recipe("first")
    user.recipe("second")
    user.test()
    (user.path / "conftest.py").write_text(BREAKS)
    result = user.run("--cluster", "local", distribution, "-k", "first or second", timeout_s=120)
    assert result.returncode != 0
    assert {case.outcome for case in result.cases.values()} == {"error"}
    assert len(result.cases) == 2
    assert "the runner broke" in result.text
    assert "no record can be kept" in result.text


@pytest.mark.parametrize("what", ["user", "folder"])
def test_names_that_are_not_utf_8_work(user: UserFolder, what: str) -> None:
    """They are spelled out in the records."""
    user.recipe()
    user.test()
    where = [f"--llmbench-run-dir={user.path}/r\udce9sultats"] if what == "folder" else []
    user.env |= {"USER": "m\udce9ller", "LOGNAME": "m\udce9ller"} if what == "user" else {}
    result = user.run("--cluster", "local", "-n0", *where, timeout_s=120)
    assert result.returncode == 0, result.text
    assert "1 passed" in result.text
