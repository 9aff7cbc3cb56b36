"""`--llmbench-require`: a test that has to be judged and was not fails the session, whatever kept it."""

from typing import cast

import pytest
import yaml

from pytest_llmbench.plugin.verdict.requirements import Requirements
from tests.conftest import UserFolder

TESTS = """
import pytest

@pytest.mark.parametrize("size", ["small", "large"])
def test_it(size):
    pass

def test_skipped():
    pytest.skip("not today")

def test_last():
    pass
"""
MET = '"1": test_it[small]\n"2": ["*::test_it[*]", test_user.py::test_last]\n'


# Clauses of one session, and the reason why it judged none of them.
NOT_JUDGED = {
    "4.10": ("test_it[*]", "test_user.py::test_it[large] was deselected"),
    "4.11": ("test_last", "test_user.py::test_last was deselected"),
    "4.12": ("test_it[huge]", "no test of this session is test_it[huge]"),
    "4.13": ("test_skipped", "test_user.py::test_skipped was skipped: "),
}
DESELECTED = ("-k", "not large", "--deselect", "test_user.py::test_last")


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_clauses_that_were_not_judged(user: UserFolder, distribution: str) -> None:
    """Each is INCOMPLETE in the summary and an error in the XML, and everything else passed."""
    user.test(TESTS)
    contract = {number: clause for number, (clause, _) in NOT_JUDGED.items()}
    (user.path / "contract.yaml").write_text(yaml.safe_dump({**contract, "4.14": "test_it[small]"}))
    result = user.run("--llmbench-require", "contract.yaml", distribution, *DESELECTED, code=1)
    for number, (clause, why) in NOT_JUDGED.items():
        assert f"{number}  INCOMPLETE  {clause}" in result.text
        case = result.cases[number]
        assert (case.outcome, case.properties["verdict"]) == ("error", "INCOMPLETE")
        assert case.properties["reason"].startswith(why)
    assert "4.14  PASS  test_it[small]" in result.text
    assert "1 passed, 1 skipped" in result.text


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_clauses_that_were_judged(user: UserFolder, distribution: str) -> None:
    user.test(TESTS)
    (user.path / "contract.yaml").write_text(MET)
    assert "1  PASS  test_it[small]" in user.run("--llmbench-require", "contract.yaml", distribution, code=0).text


def test_a_test_that_is_to_be_called_again_has_no_end_yet() -> None:
    again = pytest.TestReport("t", ("f", 1, "t"), {}, "rerun", None, "call")  # type: ignore[arg-type]  # by rerunfailures
    requirements = Requirements(cast("pytest.Config", None), None)
    requirements.clauses = {"1": ("t",)}
    requirements.pytest_runtest_logreport(again)
    (clause,) = requirements.verdicts()
    assert clause.verdict == "INCOMPLETE"


def test_a_test_behind_the_first_failure(user: UserFolder) -> None:
    user.test(TESTS.replace("def test_it(size):\n    pass", "def test_it(size):\n    assert False"))
    (user.path / "contract.yaml").write_text('"1": test_last\n')
    result = user.run("--llmbench-require", "contract.yaml", "-x", code=1)
    assert "test_last was not judged before the session ended" in result.cases["1"].properties["reason"]


@pytest.mark.parametrize(("text", "why"), [
    ("", "expected a mapping"), ("{}", "requires nothing"), ("4.10: test_it\n", "put it in quotes"),
    ('"1": test_it\n"1": test_last\n', "1"), ('"1": 7\n', "is not a test"), ('"1": []\n', "is not a test"),
])  # fmt: skip
def test_a_file_that_cannot_be_meant(user: UserFolder, text: str, why: str) -> None:
    """A requirement that is read wrongly would be a pass, so it is a usage error."""
    user.test(TESTS)
    (user.path / "contract.yaml").write_text(text)
    result = user.run_here("--llmbench-require", "contract.yaml", code=pytest.ExitCode.USAGE_ERROR)
    assert "contract.yaml" in result.text
    assert why in result.text
