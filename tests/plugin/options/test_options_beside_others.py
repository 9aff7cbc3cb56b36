"""Beside other plugins and conftest files: options, paths behind them, and tests that another plugin calls again."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import TEST_REFERENCES, UserFolder

SYSTEM = "name: far\ncluster: local\ngpus_per_node: 0\ncpu_ranks_per_node: 1\n"
TAKES_NODES = """
def pytest_addoption(parser):
    parser.addoption("--nodes", type=int)
"""


@pytest.fixture
def beside_replay(user: UserFolder) -> UserFolder:
    """A user's folder where pytest-replay is installed as well."""
    user.invite("pytest_replay")
    user.recipe()
    return user


def test_pytest_replay_keeps_its_option(beside_replay: UserFolder) -> None:
    """`--replay` is pytest-replay's: other tests run, and its own replay of them works."""
    beside_replay.test("def test_one(): pass\n\ndef test_other(): pass\n")
    recorded = beside_replay.run("-n0", "--replay-record-dir=recorded")
    assert "2 passed" in recorded.text, recorded.text
    names = beside_replay.path / "recorded" / ".pytest-replay.txt"
    replayed = beside_replay.run("-n2", f"--replay={names}")
    assert "2 passed" in replayed.text, replayed.text
    assert "llmbench: --replay belongs to another plugin or conftest.py: write --llmbench-replay" in replayed.text


def test_our_replay_has_a_name_of_its_own(beside_replay: UserFolder) -> None:
    """`--llmbench-replay` judges logs where `--replay` is pytest-replay's, and the header says so."""
    beside_replay.test()
    ran = beside_replay.run("-n0", "-k", "tiny", "--cluster", "local", "--llmbench-run-dir", "reports", code=0)
    assert "llmbench: --replay belongs to another plugin" in ran.text
    logs = ran.session.rename(beside_replay.path / "logs")
    replayed = beside_replay.run("-n2", "-k", "tiny", f"--llmbench-replay={logs}", code=0)
    assert replayed.case.properties["verdict"] == "PASS"


@pytest.mark.parametrize("looking", ["--version", "--help", "--collect-only"])
def test_looking_works_beside_pytest_replay(beside_replay: UserFolder, looking: str) -> None:
    beside_replay.test("def test_one(): pass\n")
    result = beside_replay.run(looking, code=0)
    assert ("--llmbench-replay=[as-recorded:]DIR" in result.text) == (looking == "--help")


@pytest.mark.parametrize(("place", "distribution"), [("conftest.py", "-n0"), ("late.py", "-n2")])
def test_whoever_comes_later_keeps_an_option(user: UserFolder, distribution: str, place: str) -> None:
    """A conftest file, and a plugin that is loaded after ours, may declare what is ours elsewhere."""
    user.recipe()
    user.test(TEST_REFERENCES + "\ndef test_theirs(request):\n    assert request.config.getoption('nodes') == 7\n")
    (user.path / place).write_text(TAKES_NODES)
    if place == "late.py":
        user.env = {"PYTEST_PLUGINS": "late", "PYTHONPATH": str(user.path)}
    given = ("--nodes", "7", "--llmbench-nodes", "1", "--cluster", "local")
    result = user.run(distribution, "-k", "tiny or theirs", *given, code=0)
    assert "2 passed" in result.text
    assert "llmbench: --nodes belongs to another plugin or conftest.py: write --llmbench-nodes" in result.text


def test_a_conftest_may_load_the_plugin(user: UserFolder) -> None:
    """Without entry points, `pytest_plugins` in a conftest file brings all options in both forms."""
    user.recipe()
    user.env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    (user.path / "conftest.py").write_text('pytest_plugins = ["pytest_llmbench.plugin"]\n')
    assert "1 passed" in user.run("-k", "tiny", "--cluster", "local", "--llmbench-scale", "full", code=0).text


@pytest.fixture
def far(user: UserFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not the user's, with an ini file and a conftest file that must not count."""
    user.recipe()
    folder = tmp_path_factory.mktemp("far")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "conftest.py").write_text("raise RuntimeError('a conftest file that is not the user\\'s')\n")
    (folder / "system.yaml").write_text(SYSTEM)
    (folder / "unfit.txt").write_text("")
    (folder / "reports").mkdir()
    return folder


@pytest.mark.parametrize(("option", "distribution"), [
    ("--system system.yaml", "-n2"),
    ("--llmbench-quarantine unfit.txt", "-n0"),
    ("--llmbench-run-dir reports", "-n0"),
])  # fmt: skip
def test_a_path_to_another_ini_file_is_refused(user: UserFolder, far: Path, option: str, distribution: str) -> None:
    """The message has the word to write instead, for each option that names a file or a folder."""
    name, path = option.split()
    result = user.run(distribution, "-k", "tiny", name, str(far / path), code=pytest.ExitCode.USAGE_ERROR)
    assert f"looks for its ini file there: write {name}={far / path}" in result.text
    assert "no-such-option" not in result.text


def test_a_path_behind_an_equals_sign_is_no_test(user: UserFolder, far: Path) -> None:
    """The ini file, the root folder and the conftest files are the user's."""
    result = user.run("-n2", "-k", "tiny", f"--system={far / 'system.yaml'}", code=0)
    assert f"rootdir: {user.path}\n" in result.text
    assert "configfile: pytest.ini\n" in result.text
    assert result.case.properties["system"] == "far"


def test_a_path_in_the_environment_is_refused(user: UserFolder, far: Path) -> None:
    """Pytest reads `PYTEST_ADDOPTS` as it reads the command line."""
    user.env = {"PYTEST_ADDOPTS": f"--system {far / 'system.yaml'}"}
    result = user.run("-k", "tiny", "-n2", code=pytest.ExitCode.USAGE_ERROR)
    assert f"write --system={far / 'system.yaml'}" in result.text


def test_a_path_under_the_same_ini_file_is_accepted(user: UserFolder, far: Path) -> None:
    """The folder's `conftest.py` is not loaded: logs of others may have one."""
    user.test()
    (user.path / "below").mkdir()
    (user.path / "test_user.py").rename(user.path / "below" / "test_user.py")
    (user.path / "logs").mkdir()
    shutil.copy(far / "conftest.py", user.path / "logs")
    shutil.copy(far / "system.yaml", user.path / "logs")
    result = user.run("below/test_user.py", "-k", "tiny", "--system", "logs/system.yaml", code=0)
    assert f"rootdir: {user.path}\n" in result.text
    assert result.case.properties["system"] == "far"


def test_an_ini_file_that_is_named_is_the_one(user: UserFolder, far: Path) -> None:
    """With `-c` pytest looks for no other ini file, so every path is accepted."""
    result = user.run("-c", "pytest.ini", "-k", "tiny", "--system", str(far / "system.yaml"), code=0)
    assert result.case.properties["system"] == "far"


PLUGINS = {
    "pytest_rerunfailures": ("-p", "no:pytest-retry", "--reruns", "2"),
    "pytest_retry": ("-p", "no:rerunfailures", "--retries", "2"),
}
TESTS = """
from pytest_llmbench import Quantity

calls = []

def test_slow(run):
    assert run.throughput >= Quantity("900M words/s")

def test_lucky(run):
    calls.append(run)
    assert run.throughput >= Quantity("900M words/s" if len(calls) == 1 else "1 words/s")

def test_holds(run):
    assert run.throughput >= Quantity("1 words/s")
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_it_counts_once(user: UserFolder, plugin: str) -> None:
    """On the terminal, in the XML and in the table of verdicts; the test that passes the second time has failed."""
    user.invite(plugin)
    user.recipe()
    user.test(TESTS)
    result = user.run("--cluster", "local", "-n0", *PLUGINS[plugin], timeout_s=180, code=1)
    assert "2 failed, 1 passed" in result.text
    suite = next(ET.parse(result.session / "junit.xml").iter("testsuite"))
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    rows = [line for line in result.text.splitlines() if line.startswith("tiny ")]
    assert [line.split()[-1] for line in rows] == ["FAIL", "FAIL", "PASS"]
    assert "another plugin reported 1 failed tests as something else: test_user.py::test_lucky[tiny]" in result.text
