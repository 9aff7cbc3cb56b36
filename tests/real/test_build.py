"""What a framework's build says when it cannot be whole, and what the tests then say. A whole one takes minutes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.conftest import BUILD, REPOSITORY
from tests.support.warm import asking as warm_pytest

FRAMEWORKS = ("megatron_lm", "deepspeed_chat", "metaseq", "nemo", "nemo_launcher", "torchtitan")
PIN = "55ac7082517c3878ae653c07c09c534b8aed49f6"


def environment(folder: Path, **env: str) -> dict[str, str]:
    """The environment of somebody whose frameworks are in a folder below the test's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LLMBENCH_", "PYTEST_", "PIP_"))}
    return {**own, "LLMBENCH_FRAMEWORKS": str(folder / "frameworks"), **env}


def build(folder: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BUILD, *map(str, arguments)], env=environment(folder, **env), capture_output=True, text=True, check=False
    )


def repository(folder: Path) -> Path:
    """Make a git repository with one commit, which is not the pinned one."""
    folder.mkdir()
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "something else")):
        subprocess.run([*git, *command], check=True)
    return folder


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_not_built_is_said_with_the_command_that_builds_it(framework: str, tmp_path: Path) -> None:
    done = build(tmp_path, framework, "--check")
    assert done.returncode == 1
    assert f"has no environment in {tmp_path}/frameworks/{framework}; build it with: {BUILD} {framework}" in done.stdout
    assert done.stdout.count("\n") == 1
    assert ("git clone" in done.stdout) == (framework not in {"nemo", "torchtitan"})  # their source is a package
    assert not list(tmp_path.iterdir())


def test_without_a_checkout_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for arguments, said in (
        ((), "no checkout is named"),
        (("--checkout", tmp_path / "gone"), f"there is no folder {tmp_path}/gone"),
        (("--checkout", tmp_path / "plain"), f"{tmp_path}/plain is no git checkout"),
    ):
        done = build(tmp_path, "megatron_lm", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert "a checkout of https://github.com/NVIDIA/Megatron-LM that has core_v0.16.1 (55ac7082)" in done.stderr
        assert "git clone https://github.com/NVIDIA/Megatron-LM.git" in done.stderr
    assert not (tmp_path / "frameworks").exists()


def test_a_checkout_without_the_pinned_commit_is_refused(tmp_path: Path) -> None:
    """The message names both, and the command that brings the pinned one."""
    checkout = repository(tmp_path / "Megatron-LM")
    done = build(tmp_path, "megatron_lm", "--checkout", checkout)
    assert done.returncode == 2
    assert f"{checkout} lacks core_v0.16.1 (55ac7082)" in done.stderr
    assert f"git -C {checkout} fetch https://github.com/NVIDIA/Megatron-LM {PIN}" in done.stderr
    assert not (tmp_path / "frameworks").exists()


@pytest.mark.parametrize(("arguments", "said"), [
    ("nemo --checkout DIR", "NeMo 2 takes no --checkout: its source is 2.7.3 of the package index"),
    ("metaseq --checkouts DIR", "--checkouts is for all; metaseq alone takes --checkout"),
    ("all --checkouts DIR --checkout DIR", "--checkout and --venv are for one framework"),
    ("all --checkouts DIR --venv DIR", "--checkout and --venv are for one framework"),
    ("all --checkouts DIR/gone", "there is no DIR/gone"),
])  # fmt: skip
def test_what_it_would_not_use_is_refused(arguments: str, said: str, tmp_path: Path) -> None:
    done = build(tmp_path, *arguments.replace("DIR", str(tmp_path)).split(), PIP_ARGS="--no-index")
    assert done.returncode == 2
    assert said.replace("DIR", str(tmp_path)) in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_check_of_all_builds_nothing(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "metaseq")
    for given, named in (((), "DIR"), (("--checkouts", tmp_path), str(checkout))):
        done = build(tmp_path, "all", "--check", *given, PIP_ARGS="--no-index")
        assert done.returncode == 1
        assert [line.split(":")[0] for line in done.stdout.splitlines()] == list(FRAMEWORKS)
        assert f"build it with: {BUILD} metaseq --checkout {named}" in done.stdout
    assert list(tmp_path.iterdir()) == [checkout]


def test_all_are_built_by_the_python_that_is_named(tmp_path: Path) -> None:
    done = build(tmp_path, "all", "--checkouts", tmp_path, "--python", "/bin/false", PIP_ARGS="--no-index")
    assert done.returncode == 1
    assert "nemo: error: /bin/false is no Python 3.11" in done.stderr


def test_a_python_for_which_nothing_is_pinned_is_refused(tmp_path: Path) -> None:
    done = build(tmp_path, "nemo", "--python", "/bin/false")
    assert done.returncode == 2
    assert "/bin/false is no Python 3.11" in done.stderr


def test_a_folder_that_is_no_virtual_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    done = build(tmp_path, "nemo", "--venv", tmp_path / "mine")
    assert done.returncode == 2
    assert f"{tmp_path}/mine is there, and is no virtual environment" in done.stderr
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "all of it"


def test_a_build_that_breaks_off_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """No package is found: there is a virtual environment and no system file, and the next look says so."""
    done = build(tmp_path, "nemo", PIP_ARGS="--no-index", PIP_CONFIG_FILE="/dev/null")
    assert done.returncode == 1
    assert "pip could not install the packages" in done.stderr
    folder = tmp_path / "frameworks" / "nemo"
    assert (folder / "venv" / "bin" / "python").exists()
    assert not (folder / "system.yaml").exists()
    assert "is not whole: its build did not end; build it with: " in build(tmp_path, "nemo", "--check").stdout


def test_what_was_built_from_other_pins_is_not_used(tmp_path: Path) -> None:
    """The system file is there, but was made from other versions than those of now."""
    folder = tmp_path / "frameworks" / "nemo"
    folder.mkdir(parents=True)
    (folder / "system.yaml").touch()
    (folder / "digest").write_text("0123456789abcdef\n")
    assert "was built from other pins" in build(tmp_path, "nemo", "--check").stdout


def test_the_tests_of_a_framework_skip_and_say_what_to_do(tmp_path: Path) -> None:
    """Every test of every framework; where it has to be there, they fail."""
    files = [
        str(path)
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name not in {Path(__file__).name, "test_visit.py"}
    ]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-q", *files]
    for env, outcome in (({}, "skipped"), ({"LLMBENCH_REQUIRE_FRAMEWORKS": " ".join(FRAMEWORKS)}, "errors")):
        done = warm_pytest.run(command, cwd=REPOSITORY, environment=environment(tmp_path, **env), timeout_s=300)
        assert re.search(rf"^\d+ {outcome} in ", done.stdout, re.MULTILINE), done.stdout
        for framework in FRAMEWORKS:
            assert f"build it with: {BUILD} {framework}" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_version_is_pinned(framework: str) -> None:
    lines = (BUILD.parent / framework / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert [line for line in pinned if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
    assert {line.split("==")[0].lower() for line in pinned} >= {"setuptools", "wheel"}
