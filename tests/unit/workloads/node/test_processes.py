"""Programs that are started: a signal at the worst moment leaves none of them behind."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.workloads.node import processes

PROGRAM = """
import os, signal, subprocess, sys
from pytest_llmbench.workloads.node import processes

signal.signal(signal.SIGTERM, lambda number, _: processes.leave(128 + number))

class Popen(subprocess.Popen):
    def __init__(self, *how, **named):
        try:
            super().__init__(*how, **named)
            print(self.pid, flush=True)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # whoever starts it does not know its process yet

subprocess.Popen = Popen
with processes.started(sys.argv[1:]):
    print("entered")
"""


@pytest.mark.parametrize("argv", [("sleep", "1000"), ("/no/such/program",)], ids=["started", "not_started"])
def test_a_signal_while_a_program_is_started_waits_until_it_can_be_ended(argv: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    assert "entered" not in done.stdout
    for pid in done.stdout.split():
        assert not Path("/proc", pid).exists()


def test_the_signal_would_have_left_it_behind() -> None:
    rude = PROGRAM.replace("processes.leave(128 + number)", "sys.exit(128 + number)")
    done = subprocess.run([sys.executable, "-c", rude, "sleep", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert Path("/proc", done.stdout.strip()).exists()


# As setproctitle does: a title takes the place of the first variables.
TITLED = """
import ctypes, time
first = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")[0]
ctypes.memset(first, 0, 8)
print("titled", flush=True)
time.sleep(60)
"""


def test_a_marked_process_that_shows_a_title_is_ended(tmp_path: Path) -> None:
    mark = ("LLMBENCH_TEST_MARK", str(tmp_path))
    start = functools.partial(subprocess.Popen, [sys.executable, "-c", TITLED], stdout=subprocess.PIPE, text=True)
    with start(env={"A_FIRST": "x" * 16, **os.environ, mark[0]: mark[1]}) as titled, start(env=None) as other:
        for process in (titled, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "titled\n"
        assert list(processes.marked(*mark)) == [titled.pid]
        processes.end_marked(*mark)
        assert titled.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
