"""Options beside those of other plugins and conftest files, and paths behind them beside pytest's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import TEST_REFERENCES, UserFolder

SYSTEM = "name: far\ncluster: local\ngpus_per_node: 0\ncpu_ranks_per_node: 1\n"
TAKES_NODES = """
def pytest_addoption(parser):
    parser.addoption("--nodes", type=int)
"""
BOTH = pytest.mark.parametrize("distribution", ["-n0", "-n2"])


@pytest.fixture
def beside_replay(user: UserFolder) -> UserFolder:
    """A user's folder where pytest-replay is installed as well."""
    user.invite("pytest_replay")
    user.recipe()
    return user


@BOTH
def test_pytest_replay_keeps_its_option(beside_replay: UserFolder, distribution: str) -> None:
    """`--replay` is pytest-replay's: other tests run, and its own replay of them works."""
    beside_replay.test("def test_one(): pass\n\ndef test_other(): pass\n")
    recorded = beside_replay.run("-n0", "--replay-record-dir=recorded")
    assert "2 passed" in recorded.text, recorded.text
    names = beside_replay.path / "recorded" / ".pytest-replay.txt"
    replayed = beside_replay.run(distribution, f"--replay={names}")
    assert "2 passed" in replayed.text, replayed.text
    assert "llmbench: --replay belongs to another plugin or conftest.py: write --llmbench-replay" in replayed.text


@BOTH
def test_our_replay_has_a_name_of_its_own(beside_replay: UserFolder, distribution: str) -> None:
    """`--llmbench-replay` judges logs where `--replay` is pytest-replay's, and the header says so."""
    beside_replay.test()
    ran = beside_replay.run(distribution, "-k", "tiny", "--cluster", "local", "--run-dir", "reports")
    assert ran.returncode == 0, ran.text
    assert "llmbench: --replay belongs to another plugin" in ran.text or distribution == "-n2"
    logs = ran.session.rename(beside_replay.path / "logs")
    replayed = beside_replay.run(distribution, "-k", "tiny", "--llmbench-replay", str(logs))
    assert replayed.returncode == 0, replayed.text
    assert replayed.case.properties["verdict"] == "PASS"


@pytest.mark.parametrize("looking", ["--version", "--help", "--collect-only"])
def test_looking_works_beside_pytest_replay(beside_replay: UserFolder, looking: str) -> None:
    """None of them ends with a conflict of options."""
    beside_replay.test("def test_one(): pass\n")
    result = beside_replay.run(looking)
    assert result.returncode == 0, result.text
    assert ("--llmbench-replay=DIR" in result.text) == (looking == "--help")


@pytest.mark.parametrize(("place", "distribution"), [("conftest.py", "-n0"), ("late.py", "-n2")])
def test_whoever_comes_later_keeps_an_option(user: UserFolder, distribution: str, place: str) -> None:
    """A conftest file, and a plugin that is loaded after ours, may declare what is ours elsewhere."""
    user.recipe()
    user.test(TEST_REFERENCES + "\ndef test_theirs(request):\n    assert request.config.getoption('nodes') == 7\n")
    (user.path / place).write_text(TAKES_NODES)
    if place == "late.py":
        user.env = {"PYTEST_PLUGINS": "late", "PYTHONPATH": str(user.path)}
    given = ("--nodes", "7", "--llmbench-nodes", "1", "--cluster", "local")
    result = user.run(distribution, "-k", "tiny or theirs", *given)
    assert result.returncode == 0, result.text
    assert "2 passed" in result.text
    assert "llmbench: --nodes belongs to another plugin or conftest.py: write --llmbench-nodes" in result.text


def test_a_conftest_may_load_the_plugin(user: UserFolder) -> None:
    """Without entry points, `pytest_plugins` in a conftest file brings all options in both forms."""
    user.recipe()
    user.test()
    user.env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    (user.path / "conftest.py").write_text('pytest_plugins = ["pytest_llmbench.plugin"]\n')
    result = user.run("-k", "tiny", "--cluster", "local", "--llmbench-scale", "full")
    assert result.returncode == 0, result.text
    assert "1 passed" in result.text


@pytest.fixture
def far(user: UserFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not the user's, with an ini file and a conftest file that must not count."""
    user.recipe()
    user.test()
    folder = tmp_path_factory.mktemp("far")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "conftest.py").write_text("raise RuntimeError('a conftest file that is not the user\\'s')\n")
    (folder / "system.yaml").write_text(SYSTEM)
    (folder / "unfit.txt").write_text("")
    (folder / "reports").mkdir()
    return folder


@BOTH
def test_a_path_is_no_test(user: UserFolder, far: Path, distribution: str) -> None:
    """A path in a word of its own changes neither the ini file nor the root folder nor the conftest files."""
    result = user.run(distribution, "-k", "tiny", "--system", str(far / "system.yaml"))
    assert result.returncode == 0, result.text
    assert f"rootdir: {user.path}\n" in result.text
    assert "configfile: pytest.ini\n" in result.text
    assert result.case.properties["system"] == "far"


@pytest.mark.parametrize("option", ["system system.yaml", "llmbench-quarantine unfit.txt", "run-dir reports"])
def test_nor_behind_another_option(user: UserFolder, far: Path, option: str) -> None:
    """The same with every option that names a file or a folder, in either form."""
    name, path = option.split()
    result = user.run("--collect-only", "-k", "tiny", f"--{name}", str(far / path))
    assert result.returncode == 0, result.text
    assert f"rootdir: {user.path}\n" in result.text
    assert "test_reference[tiny-learns]" in result.text


def test_logs_that_are_replayed_are_no_test(user: UserFolder, far: Path) -> None:
    """The same with the folder of `--replay`, beside a test file that is named."""
    ran = user.run("-k", "tiny", "--cluster", "local")
    assert ran.returncode == 0, ran.text
    shutil.move(ran.session, far / "logs")
    result = user.run("test_user.py", "-k", "tiny", "--replay", str(far / "logs"))
    assert result.returncode == 0, result.text
    assert f"rootdir: {user.path}\n" in result.text


def test_nor_in_the_environment(user: UserFolder, far: Path) -> None:
    """What `PYTEST_ADDOPTS` says is read as the command line is."""
    user.env = {"PYTEST_ADDOPTS": f"--system {far / 'system.yaml'}"}
    result = user.run("-k", "tiny", "-n2")
    assert result.returncode == 0, result.text
    assert f"rootdir: {user.path}\n" in result.text
    assert result.case.properties["system"] == "far"


def test_a_failure_keeps_its_exit_code(user: UserFolder, far: Path) -> None:
    """The session that starts from the corrected words ends as any other."""
    result = user.run("-k", "no_such_test", "--system", str(far / "system.yaml"))
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, result.text
    wrong = user.run("--scale", "huge", "--system", str(far / "system.yaml"))
    assert wrong.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unknown scale 'huge'" in wrong.text
    assert wrong.text.count("usage:") == 1
