"""What a run needs beforehand: all that is missing is named, with what is wrong, why it matters and what makes it."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.wire.driver import CommandTask, Needed
from pytest_llmbench.workloads.node import prepared
from pytest_llmbench.workloads.node.prepared import first_missing
from tests.conftest import known

NOBODY = 65534

MakeTask = Callable[..., CommandTask]


@pytest.fixture
def task() -> MakeTask:
    """Build a task of one CPU rank that needs one thing."""

    def build(told: dict[str, Any] | None = None, **changes: Any) -> CommandTask:
        wanted = () if told is None else (Needed(**{"name": "thing", "make": "make the-thing", **told}),)
        return CommandTask(**{"nodes": 1, "ranks_per_node": 1, "device": "cpu", "prepare": wanted, **changes})

    return build


@pytest.fixture
def missing(task: MakeTask) -> Callable[..., str]:
    """What is said of one preparation; empty when nothing is."""

    def look(**told: Any) -> str:
        problem = first_missing(task(told), os.environ)
        return "" if problem is None else problem.message

    return look


@pytest.fixture
def not_root() -> Iterator[Path]:
    """A folder that another user than root may read, whose rights count for this process."""
    was = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        if was == 0:
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(was)
            for path in Path(name).rglob("*"):
                path.chmod(0o700)


def fill(folder: Path, **sizes: int) -> None:
    folder.mkdir(exist_ok=True)
    for name, size in sizes.items():
        (folder / f"{name}.bin").write_bytes(b"x" * size)


def test_nothing_asked_nothing_missing(task: MakeTask) -> None:
    assert first_missing(task(), os.environ) is None


@pytest.mark.parametrize("told", [
    {"path": "{0}/a.bin"}, {"path": "{0}/a.bin", "min_bytes": 10},
    {"path": "{0}/*.bin", "count": 2, "min_bytes": 10}, {"path": "{0}/*.bin", "count": 1}, {"path": "{0}"},
    {"path": "{0}", "min_bytes": 30}, {"path": "{0}/**/*.bin", "count": 3}, {"path": "/dev/null"},
    {"check": "test -s {0}/a.bin"}, {"path": "{0}/a.bin", "check": "true"},
], ids=str)  # fmt: skip
def test_what_is_there_is_not_missing(tmp_path: Path, missing: Callable[..., str], told: dict[str, Any]) -> None:
    fill(tmp_path, a=10, b=11)
    fill(tmp_path / "deep", c=10)
    assert (
        missing(**{key: value.format(tmp_path) if isinstance(value, str) else value for key, value in told.items()})
        == ""
    )


@pytest.mark.parametrize(("told", "words"), [
    ({"path": "{0}/no/such"}, "{0}/no/such is not there (the nearest folder that is: {0})"),
    ({"path": "{0}/no/*.bin"}, "{0}/no is not there (the nearest folder that is: {0})"),
    ({"path": "{0}/a.bin/*.bin"}, "{0}/a.bin: Not a directory"),
    ({"path": "{0}/*.idx"}, "0 of 1 file found for {0}/*.idx"),
    ({"path": "{0}/*.bin", "count": 4}, "2 of 4 files found for {0}/*.bin"),
    ({"path": "{0}/a.bin", "min_bytes": 12}, "{0}/a.bin has 10 bytes, 2 fewer than the 12 it must have at least"),
    ({"path": "{0}", "min_bytes": 2000}, "{0} has 21 bytes, 1,979 fewer than the 2,000 it must have at least"),
    ({"path": "{0}/zero"}, "{0}/zero is empty (0 bytes)"),
    ({"path": "{0}/empty"}, "{0}/empty is an empty folder"),
    ({"path": "{0}/broken"}, "{0}/broken is a link to {0}/gone, which is not there"),
    ({"path": "{0}/circle"}, "{0}/circle is reached by symbolic links that lead in a circle"),
    ({"path": "{0}/circle/x"}, "{0}/circle/x is reached by symbolic links that lead in a circle"),
    ({"path": "{0}/a**b"}, "Invalid pattern" if sys.version_info < (3, 13) else "0 of 1 file found"),
], ids=lambda value: str(value) if isinstance(value, dict) else "")  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, missing: Callable[..., str], told: dict[str, Any], words: str) -> None:
    fill(tmp_path, a=10, b=11)
    (tmp_path / "zero").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    message = missing(**{**told, "path": told["path"].format(tmp_path)})
    assert words.format(tmp_path) in message
    assert message.endswith("\n  make it with: make the-thing")


def test_only_the_first_of_many_wrong_files_are_named(tmp_path: Path, missing: Callable[..., str]) -> None:
    """Every file of a pattern is looked at; a message of a thousand names would help nobody."""
    fill(tmp_path, **{f"f{number}": number for number in range(10)})
    message = missing(path=f"{tmp_path}/*.bin", min_bytes=9)
    assert f"{tmp_path}/f0.bin is empty (0 bytes); {tmp_path}/f1.bin has 1 bytes, 8 fewer than the 9" in message
    assert "f3.bin" not in message
    assert "and 6 more of 10 like these" in message


def test_a_running_download_does_not_count_and_brackets_are_a_name(tmp_path: Path, missing: Callable[..., str]) -> None:
    fill(tmp_path, a=1, **{".b": 1})
    assert "1 of 2 files found" in missing(path=f"{tmp_path}/*.bin", count=2)
    assert missing(path=f"{tmp_path}/.*.bin") == ""
    fill(tmp_path / "[old]", a=1)
    assert missing(path=f"{tmp_path}/[old]/a.bin") == ""


def test_folders_linked_in_a_circle_are_looked_through_once(tmp_path: Path, missing: Callable[..., str]) -> None:
    fill(tmp_path, a=1)
    for name in ("round", "again"):
        (tmp_path / name).symlink_to(tmp_path, target_is_directory=True)
    assert "1 of 2 files found" in missing(path=f"{tmp_path}/**/*.bin", count=2)


def test_what_cannot_be_read_is_not_there_for_the_run(not_root: Path, missing: Callable[..., str]) -> None:
    """A file without the right to read it, a folder, and a folder below the pattern's are told apart from nothing."""
    os.seteuid(os.getuid())
    fill(not_root, closed=5)
    fill(not_root / "folder", inside=5)
    (not_root / "closed.bin").chmod(0)
    (not_root / "folder").chmod(0)
    os.seteuid(NOBODY if os.getuid() == 0 else os.getuid())
    denied = f"cannot be read by user {os.geteuid()} of {os.uname().nodename}: permission denied"
    assert f"{not_root}/closed.bin {denied}" in missing(path=f"{not_root}/closed.bin")
    assert f"{not_root}/folder {denied}" in missing(path=f"{not_root}/folder")
    assert f"{not_root}/folder {denied}" in missing(path=f"{not_root}/folder/*.bin")
    assert f"folder/inside.bin {denied}" in missing(path=f"{not_root}/folder/inside.bin")
    assert f"{not_root}/folder {denied}" in missing(path=f"{not_root}/*/*.bin")


def test_a_failed_check_is_quoted(missing: Callable[..., str]) -> None:
    """The status, the last line with words on it, and the command itself."""
    message = missing(check="echo first; echo 'module apex is not there' >&2; echo; exit 3", why="it would be slow")
    assert "thing: its check ended with status 3; its last words: module apex is not there\n  check: echo" in message
    assert "\n  why it matters: it would be slow\n  make it with: make the-thing" in message


def test_a_check_ends_with_its_first_failing_line(tmp_path: Path, missing: Callable[..., str]) -> None:
    assert "status 1 and printed nothing" in missing(check=f"false\ntouch {tmp_path}/after\ntrue")
    assert not (tmp_path / "after").exists()
    assert "ended with status 4 and printed nothing" in missing(check="exec >&- 2>&-; sleep 0.3; exit 4")


def test_a_check_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, missing: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_CHECK_S", 0.5)
    pid = tmp_path / "pid"
    assert "its check did not end within 0.5 s" in missing(check=f"sleep 600 & echo $! > {pid}; wait")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    monkeypatch.setattr(prepared, "_CHECK_S", 60.0)
    assert missing(check=f"sleep 600 & echo $! > {pid}") == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_check_that_prints_much_keeps_its_last_words(missing: Callable[..., str]) -> None:
    """50 MB are read and thrown away, so the check does not block on a full pipe; bytes of no text do no harm."""
    message = missing(check="yes | head -c 50000000; printf 'bad \\377 end'; exit 1")
    assert "its last words: bad \N{REPLACEMENT CHARACTER} end\n" in message
    assert len(message) < 1000


def test_a_check_runs_in_the_framework_s_environment(task: MakeTask) -> None:
    told = {"check": 'test "$A$B$C" = 123'}
    env = {**os.environ, "A": "1", "B": "0"}
    settings: dict[str, Any] = {"env": {"B": "2"}, "setup": ("export C=3",)}
    assert first_missing(task(told, **settings), env) is None
    problem = known(first_missing(task({"check": "true"}, setup=("no-such-module load cuda",)), env))
    assert "no-such-module: command not found" in problem.message


def test_files_are_looked_for_before_the_check_of_them(tmp_path: Path, missing: Callable[..., str]) -> None:
    message = missing(path=f"{tmp_path}/none", check=f"touch {tmp_path}/checked; false")
    assert "is not there" in message
    assert "its check" not in message
    assert not (tmp_path / "checked").exists()


def test_one_problem_names_everything(tmp_path: Path, task: MakeTask) -> None:
    """Who repairs the one does not have to start again to hear of the other; what is there is not mentioned."""
    wanted = [
        Needed(name="tokens", path=f"{tmp_path}/*.bin", count=2, make="make tokens", why="no data, no training"),
        Needed(name="here", path=str(tmp_path.parent), make="make here"),
        Needed(name="apex", check="exit 1", make="make apex"),
    ]
    secrets = {"HF_TOKEN": f"{tmp_path}/token"}
    problem = known(first_missing(task(prepare=tuple(wanted), secrets=secrets), os.environ))
    assert problem.kind == "not_prepared"
    assert problem.message == (
        f"{os.uname().nodename} is not prepared for this run, 3 missing:\n"
        f"- HF_TOKEN: the file that holds it: {tmp_path}/token is not there (the nearest folder that is: {tmp_path})\n"
        f"- tokens: 0 of 2 files found for {tmp_path}/*.bin\n"
        "  why it matters: no data, no training\n"
        "  make it with: make tokens\n"
        "- apex: its check ended with status 1 and printed nothing\n"
        "  check: exit 1\n"
        "  make it with: make apex"
    )


def test_a_secret_that_a_check_prints_is_not_quoted(tmp_path: Path, task: MakeTask) -> None:
    (tmp_path / "file").write_text("hf_abc\n")
    for name in ("MINE", "HF_TOKEN"):
        env = {**os.environ, "HF_TOKEN": "0123456789"}
        problem = first_missing(task({"check": f"echo ${name}; exit 1"}, secrets={"MINE": f"{tmp_path}/file"}), env)
        assert problem is not None
        assert "what it printed has a secret in it and is not shown" in problem.message
        assert "hf_abc" not in problem.message
        assert "0123456789" not in problem.message


def test_nothing_is_made(tmp_path: Path, missing: Callable[..., str]) -> None:
    assert missing(path=f"{tmp_path}/made", make=f"touch {tmp_path}/made")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def boxed(tmp_path: Path) -> dict[str, Any]:
    """A task's container: any program in front of a command line can play its runtime."""
    runtime = tmp_path / "runtime"
    runtime.write_text('#!/bin/sh\nshift\nIN_IMAGE=yes exec "$@"\n')
    runtime.chmod(0o755)
    return {
        "image": "nvcr.io/nvidia/pytorch:24.05-py3",
        "mounts": (f"{tmp_path}/host:/data:ro", f"{tmp_path}/nested:/data/nested", "volume:/cache"),
        "inside": f"{runtime} image",
        "python": sys.executable,
    }


def test_checks_run_in_the_container_and_mounts_count(tmp_path: Path, task: MakeTask, boxed: dict[str, Any]) -> None:
    """A file below a mount is found without the container, by the innermost mount."""
    fill(tmp_path / "host", a=1)
    (tmp_path / "nested").mkdir()
    no_runtime = {**boxed, "inside": "false"}
    assert first_missing(task({"path": "/data/*.bin"}, **no_runtime), os.environ) is None
    problem = known(first_missing(task({"path": "/data/nested/*.bin"}, **no_runtime), os.environ))
    assert f"0 of 1 file found for {tmp_path}/nested/*.bin" in problem.message
    assert first_missing(task({"check": 'test "$IN_IMAGE" = yes'}, **boxed), os.environ) is None


def test_files_of_the_image_are_looked_for_inside(tmp_path: Path, task: MakeTask, boxed: dict[str, Any]) -> None:
    fill(tmp_path / "opt", a=1)
    assert first_missing(task({"path": f"{tmp_path}/opt/a.bin"}, **boxed), os.environ) is None
    problem = known(first_missing(task({"path": f"{tmp_path}/opt/*.bin", "min_bytes": 3}, **boxed), os.environ))
    assert "opt/a.bin has 1 bytes, 2 fewer than the 3" in problem.message
    no_image = {**boxed, "inside": "echo no such image; false"}
    message = known(first_missing(task({"path": "/opt/x"}, **no_image), os.environ)).message
    assert "/opt/x could not be checked in the container: ended with status 1; its last words: no such" in message
