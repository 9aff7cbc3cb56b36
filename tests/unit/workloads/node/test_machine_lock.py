"""A machine's lock is held by each process that loads the machine, until the last of them has ended."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_llmbench.workloads.node.machine_lock import hold, holders, is_held, take
from tests.conftest import known
from tests.support.waiting import wait_until

# Holds the lock, hands it to a program that outlives it or not, and says that it does.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from pytest_llmbench.workloads.node.machine_lock import hold
locks = hold(Path(sys.argv[1]))
if sys.argv[2] == "hands on":
    child = subprocess.Popen(["sleep", "600"], pass_fds=locks, stdout=subprocess.DEVNULL, start_new_session=True)
    print(child.pid, flush=True)
else:
    print(0, flush=True)
time.sleep(600)
"""


def held(lock: Path, how: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds the lock, and the id of the one that it handed it to."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_several_hold_it_and_the_last_gives_it_back(tmp_path: Path) -> None:
    """Killed processes give it back too, and those that hold it are named."""
    lock = tmp_path / "lock"
    assert not is_held(lock)
    processes = [held(lock, "alone")[0] for _ in range(2)]
    assert set(holders(lock)) == {process.pid for process in processes}
    for process in processes:
        assert is_held(lock)
        process.kill()
        process.communicate()
    assert not is_held(lock)
    assert holders(lock) == ()


def test_a_program_that_outlives_its_driver_holds_it(tmp_path: Path) -> None:
    """The script of a framework goes on where the driver alone is killed."""
    lock = tmp_path / "lock"
    driver, child = held(lock, "hands on")
    driver.kill()
    driver.communicate()
    try:
        assert is_held(lock)
    finally:
        subprocess.run(["kill", "-9", str(child)], check=True)
    # A killed process loses its memory before its files: the lock is free a moment after the process looks dead.
    wait_until(lambda: not is_held(lock))


def test_without_a_lock_nothing_is_held(tmp_path: Path) -> None:
    assert hold(None) == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_looking_changes_nothing(tmp_path: Path, mode: int) -> None:
    lock = tmp_path / "lock"
    lock.touch(mode)
    assert not is_held(lock)
    assert not is_held(lock)


def test_one_alone_takes_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    mine = known(take(lock))
    assert take(lock) is None
    os.close(mine)
    process, _ = held(lock, "alone")
    assert take(lock) is None
    process.kill()
    process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_sessions_of_two_users_wait_for_each_other(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # the folders above tmp_path are of one user alone
    folder.chmod(0o1777)
    lock = folder / "lock"
    before = os.umask(0o077)
    try:
        mine = known(take(lock))
        assert as_nobody(lock) == "held"
        os.close(mine)
        assert as_nobody(lock) == "free"
    finally:
        os.umask(before)
        lock.unlink(missing_ok=True)
        folder.rmdir()


def as_nobody(lock: Path) -> str:
    """What another user sees of a lock; in a process of its own, which cannot run Python's files anew."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, b"held" if is_held(lock) else b"free")
        except OSError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    told = os.read(reading, 1000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return told


def test_a_link_or_a_fifo_is_no_lock(tmp_path: Path) -> None:
    """Any user may have put it there: a link may lead anywhere, and opening a FIFO would wait for ever."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        is_held(tmp_path / "lock")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is not a regular file"):
        take(tmp_path / "fifo")
