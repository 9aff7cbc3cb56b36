"""A session of ours begins with the first test of ours: it is like any other, and one without such a test is light."""

import re
from pathlib import Path

import pytest

from tests.conftest import TEST_REFERENCES, UserFolder, read_junit
from tests.support.packages import COUNTING, install

# Packages that take a second to import, and the state of a session of ours.
HEAVY = {
    "cryptography", "jinja2", "pydantic", "rich", "submitit", "typer", "yaml",
    "pytest_llmbench.plugin.bench",
}  # fmt: skip
# Each process of pytest writes the names of the modules that it has.
WATCHER = """
import os
import sys
from pathlib import Path

def pytest_sessionfinish():
    process = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    Path(__file__).with_name(f"modules-{process}").write_text("\\n".join(sys.modules))
"""
NOT_OURS = """
import pytest

@pytest.fixture
def run():
    return 1

@pytest.mark.recipe("tiny")
def test_only_marked():
    pass

def test_their_own_fixture(run):
    assert run == 1
"""
AFTER_OTHERS = {
    "test_1_skipped.py": "import pytest\n\npytest.skip('not here', allow_module_level=True)\n",
    "test_2_plain.py": "def test_plain():\n    pass\n",
    "test_3_ours.py": TEST_REFERENCES,
}
IN_A_FIXTURE = """
import pytest

@pytest.fixture
def asked(request):
    return request.getfixturevalue("FIXTURE")

def test_by_name(asked):
    pass
"""


def imported(user: UserFolder) -> dict[str, set[str]]:
    """The heavy modules of each process of the last session."""
    files = user.path.glob("modules-*")
    return {path.name.partition("-")[2]: HEAVY & set(path.read_text().split()) for path in files}


def on_this_machine(user: UserFolder) -> None:
    """Say in the ini file where runs run, so that a session needs no option of ours."""
    with (user.path / "pytest.ini").open("a") as ini:
        ini.write("llmbench_cluster = local\n")


def after_others(user: UserFolder) -> None:
    """A recipe, and a test of it in the last of several files."""
    on_this_machine(user)
    user.recipe()
    for name, source in AFTER_OTHERS.items():
        user.test(source, name)


def told(text: str) -> list[str]:
    """The lines of a session that are headings or ours, without what differs from one session to the next."""
    lines = [line for line in text.splitlines() if re.match(r"=|llmbench|- generated|records|tiny|clause", line)]
    return [re.sub(r"\d{8}-\d{6}-\w+|\d[\d.,]*k?", "N", line).strip("=") for line in lines]


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_session_without_our_tests_imports_nothing_heavy(user: UserFolder, distribution: str) -> None:
    on_this_machine(user)
    user.test(NOT_OURS)
    user.test(WATCHER, "conftest.py")
    result = user.run_new(distribution, code=0)
    assert "llmbench:" not in result.text
    assert result.found is None
    found = imported(user)
    processes = ["alone"] if distribution == "-n0" else ["alone", "gw0", "gw1"]
    assert found == {process: set() for process in processes}


def test_what_was_asked_for_begins_at_once(user: UserFolder) -> None:
    """A required clause is about tests of others, too, and an option of ours is checked before anything else."""
    user.test(NOT_OURS)
    user.test(WATCHER, "conftest.py")
    (user.path / "contract.yaml").write_text("'1': test_only_marked\n'2': test_nowhere\n")
    with (user.path / "pytest.ini").open("a") as ini:
        ini.write("llmbench_require = contract.yaml\n")
    result = user.run_new(code=1)
    assert re.search(r"^1 +PASS", result.text, re.MULTILINE)
    assert re.search(r"^2 +INCOMPLETE", result.text, re.MULTILINE)
    assert "pytest_llmbench.plugin.bench" in imported(user)["alone"]


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_it_looks_the_same_after_others(user: UserFolder, distribution: str) -> None:
    """Lines, their order and the XML are those of a session with an option of ours, and of tests before ours, too."""
    after_others(user)
    early, late = (user.run(distribution, *args, "--junitxml=late.xml") for args in (["--cluster=local"], []))
    assert late.returncode == early.returncode == 0, late.text
    assert told(late.text) == told(early.text) or distribution != "-n0"
    assert [line for line in told(late.text) if "llmbench verdicts" in line]
    assert "llmbench: system local" in late.text
    assert "llmbench: 1 run, reports in" in late.text
    cases = read_junit(user.path / "late.xml")
    assert {name: (case.outcome, case.properties.get("verdict")) for name, case in cases.items()} == {
        "test_1_skipped": ("skipped", None), "test_plain": ("passed", None),
        "test_reference[tiny-learns]": ("passed", "PASS"),
    }  # fmt: skip
    assert '<property name="system" value="local"' in (user.path / "late.xml").read_text()


@pytest.mark.parametrize("fixture", ["run", "reference", "health"])
def test_a_fixture_that_is_named_only_in_another_is_an_error(user: UserFolder, fixture: str) -> None:
    """At collection such a test looks like somebody else's, so no session of ours has begun."""
    on_this_machine(user)
    user.test(IN_A_FIXTURE.replace("FIXTURE", fixture))
    result = user.run("-n0", code=pytest.ExitCode.TESTS_FAILED)
    assert "not in getfixturevalue" in result.text
    assert "1 error" in result.text
    assert result.found is None


def test_a_conftest_lends_by_itself(user: UserFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    on_this_machine(user)
    site: Path = tmp_path_factory.mktemp("site")
    user.env["PYTHONPATH"] = str(site)
    install(site, "acme", {"acme_counting": COUNTING}, {})
    user.recipe("words", engine="counting")
    user.test("import acme_counting\n\ndef pytest_llmbench_engines():\n    return [acme_counting.Counting()]\n",
              "conftest.py")  # fmt: skip
    user.test("def test_it(run):\n    assert run.record.steps\n")
    assert user.run("-n2", code=0).case.properties["verdict"] == "PASS"


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_plan_that_cannot_be_is_refused(user: UserFolder, distribution: str) -> None:
    after_others(user)
    user.recipe("tiny-repeat2")
    user.test("import pytest\n\n@pytest.mark.recipe('tiny', repeats=2)\ndef test_twice(run):\n    pass\n")
    late, early = user.run(distribution), user.run(distribution, "--cluster=local")
    for result in (late, early):
        assert "a repeat of tiny could have the name of recipe tiny-repeat2: rename that recipe" in result.text
        assert result.returncode == pytest.ExitCode.USAGE_ERROR
        assert "passed" not in result.text


def test_a_file_that_cannot_be_imported_costs_no_verdict(user: UserFolder) -> None:
    after_others(user)
    user.test("import nowhere\n", "test_4_broken.py")
    late, early = user.run("-n2"), user.run("-n2", "--cluster=local")
    assert late.returncode == early.returncode != 0
    assert late.found is not None, late.text
    assert early.found is not None
    assert {name: case.properties.get("verdict") for name, case in late.cases.items()} == {
        name: case.properties.get("verdict") for name, case in early.cases.items()
    }
