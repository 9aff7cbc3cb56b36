"""Sessions that are not about benchmarks: the plugin is a guest there, and leaves nothing and breaks nothing."""

from pathlib import Path

import pytest

from tests.conftest import UserFolder

STRANGERS = """
import pytest

@pytest.fixture(params=["fast", "slow"])
def run(request):
    return request.param

@pytest.fixture
def reference():
    return 42

def test_their_run(run):
    assert run in {"fast", "slow"}

def test_their_reference(reference):
    assert reference == 42

@pytest.mark.parametrize("run", ["tiny", "opt125m"])
def test_their_parameter(run):
    assert isinstance(run, str)

@pytest.mark.parametrize(("run", "reference"), [(1, 2)])
def test_their_parameters(run, reference):
    assert run < reference
"""


def left(folder: Path) -> set[str]:
    """What a session left behind, but for what pytest itself and pytest-benchmark always leave."""
    known = {"__pycache__", "pytest.ini", "recipes", "test_user.py", ".benchmarks"}
    return {path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith("pytest-of-")}


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_session_without_benchmarks_shows_and_leaves_nothing(user: UserFolder, distribution: str) -> None:
    """No line of ours, no reports folder, no report; fixtures and parameters named like ours are their owners'."""
    user.test(STRANGERS)
    result = user.run(distribution, code=0)
    assert "6 passed" in result.text
    assert "llmbench" not in result.text.replace("plugins: llmbench-", "").replace("no:llmbench", "")
    assert "generated xml" not in result.text
    assert left(user.path) == set()


def test_their_own_report_is_as_it_was(user: UserFolder) -> None:
    user.test("def test_other(): pass\n")
    user.run("-n0", "--junitxml=mine.xml", code=0)
    assert "llmbench" not in (user.path / "mine.xml").read_text()
    assert left(user.path) == {"mine.xml"}


@pytest.mark.parametrize(("options", "shown"), [
    ("--collect-only", "<Function test_reference[tiny-learns]>"),
    ("--collect-only -n2", "<Function test_reference[tiny-learns]>"),
    ("--setup-plan", "SETUP    F run"), ("--fixtures", "The finished run of this test's recipe"),
    ("--markers", "@pytest.mark.recipe(*names, repeats=1): run this test for these recipes only"),
])  # fmt: skip
def test_looking_leaves_nothing(user: UserFolder, options: str, shown: str) -> None:
    """What only shows something runs nothing and writes nothing, with tests of ours, too."""
    user.recipe()
    result = user.run("--cluster", "local", "-k", "tiny", *options.split(), code=0)
    assert left(user.path) == set()
    assert shown in result.text


def test_without_the_plugin_pytest_is_clean(user: UserFolder) -> None:
    """`-p no:llmbench`: other tests pass, ours have no fixture, and options and marker are unknown."""
    (user.path / "pytest.ini").write_text("[pytest]\nstrict = true\nfilterwarnings = error\n")
    user.test("def test_other(): pass\n\ndef test_ours(run): pass\n")
    result = user.run("-p", "no:llmbench", "-n0")
    assert "1 passed, 1 error" in result.text
    assert "fixture 'run' not found" in result.text
    assert "llmbench" not in user.run("-p", "no:llmbench", "--help").text
    assert "recipe(" not in user.run("-p", "no:llmbench", "--markers").text
    unknown = user.run("-p", "no:llmbench", "--scale", "smoke", code=pytest.ExitCode.USAGE_ERROR)
    assert "unrecognized arguments: --scale" in unknown.text
    user.test("import pytest\n\n@pytest.mark.recipe('tiny')\ndef test_ours(run): pass\n")
    marked = user.run("-p", "no:llmbench", "-n0")
    assert "'recipe' not found in `markers` configuration option" in marked.text
    assert left(user.path) == set()


@pytest.mark.parametrize("plugin", ["junitxml", "terminal", "terminalreporter", "faulthandler"])
def test_other_plugins_may_be_missing(user: UserFolder, plugin: str) -> None:
    """Without xdist and pytest-benchmark, see the tests of evidence."""
    user.test("def test_other(): pass\n")
    result = user.run("-p", f"no:{plugin}")
    assert "Traceback" not in result.text
    assert result.returncode == 0, result.text
