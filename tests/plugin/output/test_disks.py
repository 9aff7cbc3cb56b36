"""Folders that cannot be written, and disks that run full: nothing measured is lost, no traceback is shown."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import UserFolder, read_junit
from tests.support.standin import log_at_hand

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount file systems")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a disk of 64 KiB, or skip where even root may not (an unprivileged container)."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{options}size=64k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this root cannot mount: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def read_only(user: UserFolder) -> Iterator[Path]:
    with mounted(user.path / "read_only", "ro,") as folder:
        yield folder


@pytest.fixture
def small_disk(user: UserFolder) -> Iterator[Path]:
    with mounted(user.path / "small", "") as folder:
        yield folder


@pytest.mark.parametrize(("distribution", "below"), [("-n0", ""), ("-n2", "not/there/yet")])
def test_a_read_only_folder_is_a_usage_error(user: UserFolder, read_only: Path, distribution: str, below: str) -> None:
    user.recipe()
    result = user.run("--cluster", "local", distribution, f"--llmbench-run-dir={read_only / below}")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, result.text
    assert f"--llmbench-run-dir {read_only / below}".rstrip("/") in result.text
    assert "cannot be written; give another --llmbench-run-dir" in result.text
    assert "Traceback" not in result.text, result.text


def test_a_read_only_run_directory_without_our_options(user: UserFolder, read_only: Path) -> None:
    with (user.path / "pytest.ini").open("a") as ini:
        ini.write("llmbench_cluster = local\nllmbench_run_dir = read_only/reports\n")
    user.recipe()
    result = user.run("-n0", "-k", "tiny", code=pytest.ExitCode.USAGE_ERROR)
    assert "give another --llmbench-run-dir" in result.text
    assert "Traceback" not in result.text, result.text


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_full_disk_for_the_report_costs_no_more(user: UserFolder, small_disk: Path, distribution: str) -> None:
    """The verdicts are on the terminal, the records are whole, and the session fails for what is missing."""
    user.recipe()
    (small_disk / "filler").write_bytes(b"x" * 62_000)
    result = user.run("--cluster", "local", distribution, "-k", "tiny", f"--junitxml={small_disk}/mine.xml")
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR, result.text
    assert re.search(r"^tiny +1 .* PASS( .*)?$", result.text, re.MULTILINE)
    assert "a report could not be written: [Errno 28] No space left on device" in result.text
    assert "1 passed" in result.text
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text
    assert len(result.record()["judgements"]) == 1


ENDS_THE_DISK = {
    "full": "with contextlib.suppress(OSError), open('small/filler', 'wb', 0) as file:\n"
    "        while file.write(b'x' * 512):\n            pass",
    "read-only": "subprocess.run(['mount', '-o', 'remount,ro', 'small'], check=True)",
}
TESTS_ON_THE_DISK = """
import contextlib, subprocess, threading
from pytest_llmbench.plugin.output import junit

junit.SHORTEST_S = junit.SHARE = 0.01
attempted = threading.Semaphore(0)
attempt = junit.Refreshing._attempt

def counted(self):
    attempt(self)
    attempted.release()

junit.Refreshing._attempt = counted

def test_a(run):
    {end}

def test_b(run):
    assert attempted.acquire(timeout=60)  # before `test_a`

def test_c(run):
    assert attempted.acquire(timeout=60)

def test_d(run):
    assert attempted.acquire(timeout=60)
"""


def test_a_report_whose_folder_cannot_be_made_costs_no_verdict(user: UserFolder) -> None:
    log_at_hand(user, "first")
    result = user.run("--llmbench-replay", "logs", "-k", "first", "--junitxml=/proc/none/mine.xml")
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR, result.text
    assert "a report could not be written: [Errno 2] No such file or directory: '/proc/none'" in result.text
    assert re.search(r"^first +1 .* PASS( .*)?$", result.text, re.MULTILINE)
    assert "Traceback" not in result.text


@pytest.mark.parametrize("end", ENDS_THE_DISK)
def test_a_disk_that_ends_during_the_session(user: UserFolder, small_disk: Path, end: str) -> None:
    """One line says it, all tests are judged, the session fails for it, and the XML that is left is whole."""
    log_at_hand(user, "first")
    user.test(TESTS_ON_THE_DISK.format(end=ENDS_THE_DISK[end]))
    result = user.run("--llmbench-replay", "logs", "--junitxml=small/mine.xml", "-k", "first")
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR, result.text
    assert "4 passed" in result.text
    assert result.text.count("a report cannot be written: [Errno") == 1, result.text
    assert "a report could not be written: [Errno" in result.text
    assert "Traceback" not in result.text
    left = read_junit(small_disk / "mine.xml")
    assert set(left) == {f"test_{letter}[first]" for letter in "abcd"} | {"end"}
    assert {case.outcome for case in left.values()} == {"error"}


@pytest.mark.parametrize("used", [61_000, 57_000, 45_000, 16_000])
def test_a_disk_that_runs_full_is_said(user: UserFolder, small_disk: Path, used: int) -> None:
    user.recipe()
    (small_disk / "filler").write_bytes(b"x" * used)
    result = user.run("--cluster", "local", "-n0", "-k", "tiny", f"--llmbench-run-dir={small_disk}", timeout_s=150.0)
    assert result.returncode in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR}, result.text
    assert "No space left on device" in result.text
    assert "INTERNALERROR" not in result.text
    assert "Traceback" not in result.text
    if result.returncode == pytest.ExitCode.INTERNAL_ERROR:
        assert re.search(r"^tiny +1 .* (ERROR|PASS)( .*)?$", result.text, re.MULTILINE)
        assert "record.json could not be written" in result.text
