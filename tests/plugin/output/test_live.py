"""The live view of real sessions: on a terminal, in plain lines, and from another process."""

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import ASLEEP, TEST_REFERENCES, UserFolder
from tests.support.screens.terminal import Terminal
from tests.support.warm import asking as warm_pytest


def watched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_llmbench.cli", "watch", *words]
    return warm_pytest.run(command, cwd=folder, environment=os.environ, timeout_s=100)


def on_terminal(user: UserFolder, width: int, *args: str) -> list[str]:
    """Run pytest on a terminal, and return what is on its screen in the end."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    environment = {**user.environment, "TERM": "xterm", "CI": "", "COLUMNS": str(width)}
    standing = [sys.executable, "-I", "-S", warm_pytest.__file__, str(warm_pytest.address()), "module"]
    command = [*standing, *user.command(*args)[2:]]
    process = subprocess.Popen(
        command, cwd=user.path, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    told = b""
    try:
        while chunk := os.read(controller, 65536):
            told += chunk
    except OSError:  # its other end is closed
        pass
    os.close(controller)
    assert process.wait(100) == 0, told.decode()
    screen = Terminal(width)
    screen.feed(told.decode())
    assert b"words/s" in told
    assert b"1 running" in told
    return screen.lines


@pytest.mark.parametrize(("args", "width"), [(("-v",), 120), (("-n", "2"), 60)])
def test_the_table_leaves_the_verdicts_whole(user: UserFolder, args: tuple[str, ...], width: int) -> None:
    """A table is drawn while a run goes on, none of it is left between the lines of pytest, and others see the end."""
    user.recipe("tiny", options=ASLEEP, steps=30)
    user.test(TEST_REFERENCES)
    lines = on_terminal(user, width, "--cluster=local", "-p", "no:cacheprovider", *args)
    assert not [line for line in lines if "running" in line or line.startswith("run     state")]
    assert any("PASS" in line and line.startswith("tiny") for line in lines)
    assert "1 passed" in lines[-2] + lines[-1]
    done = watched(user.path, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["state"], told["notes"]) == (0, "ended", ["nothing_judged (exit code 0)"])
    (task,) = told["snapshot"]["tasks"]
    assert (task["name"], task["state"], task["verdict"]) == ("tiny", "judged", "PASS")


def test_a_killed_session_says_so_and_how_to_go_on(user: UserFolder) -> None:
    """A picture of a dead process is never taken for the present: it has an age, and the command that resumes."""
    user.recipe("tiny", options=ASLEEP, steps=600)
    user.test(TEST_REFERENCES)
    process = user.start("--cluster=local")
    session = user.wait_for(lambda folder: folder if '"running"' in _text(folder / "live.json") else None)
    running = watched(user.path, "--once")
    assert (running.returncode, "running" in running.stdout) == (0, True), running
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (session / "stop").write_text("killed by a test\n")  # its ranks need not wait for a minute
    # As with `--llmbench-session-name`: the name of its folder is not its id.
    named = session.with_name("nightly")
    named.mkdir()
    shutil.copy(session / "live.json", named)
    done = watched(user.path, "nightly", "--once")
    assert done.returncode == 1
    assert "no sign of life for" in done.stdout
    assert "with --resume=nightly" in done.stdout


def test_no_session_is_wrong_input(tmp_path: Path) -> None:
    done = watched(tmp_path)
    assert done.returncode == 2
    assert "give --run-dir" in done.stdout


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
