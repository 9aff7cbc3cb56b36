"""The HTML report that a session writes into its folder."""

import json

import pytest

from tests.conftest import UserFolder

TESTS = """
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference

def test_free(run):
    assert run.record.steps
"""


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_session_has_its_report(user: UserFolder, distribution: str) -> None:
    """Each test is a row of it, as it is a case of the XML; one that compared nothing is no plain PASS."""
    user.recipe()
    user.test(TESTS)
    result = user.run("--cluster=local", "-k", "tiny", "-o", "llmbench_report=yes", distribution)
    assert result.returncode == 0, result.text
    page = (result.session / "report.html").read_text(encoding="utf-8")
    assert page.count("<tr data-k=") == len(result.cases) == 2
    assert (page.count('<tr data-k="pass"'), page.count('<tr data-k="unbounded"')) == (1, 1)
    assert "NO SPEED WAS JUDGED for tiny" in page
    assert f"report: {result.session}/report.html" in result.text
    told = json.loads((result.session / "verdicts.json").read_text())
    assert {each["test"].partition("::")[2] for each in told["tests"]} == set(result.cases)


def test_a_session_without_it(user: UserFolder) -> None:
    user.recipe(engine="torch", global_batch_size=3, micro_batch_size=2)  # refused before it starts, which costs no run
    user.test()
    result = user.run("--cluster=local", "-k", "tiny", "-o", "llmbench_report=no")
    assert (result.session / "verdicts.json").is_file()
    assert not (result.session / "report.html").exists()
