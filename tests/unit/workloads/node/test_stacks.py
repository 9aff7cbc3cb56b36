"""Programs that are started leave none of them behind, and the stacks that processes write down for a session."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_llmbench.workloads.node import processes
from pytest_llmbench.workloads.node.stacks import Answering, describe_marked, rank_answering, thread_stacks
from pytest_llmbench.workloads.rank.context import RankContext

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def context(folder: Path) -> RankContext:
    return RankContext(
        rank=0, world_size=2, local_rank=0, ranks_per_node=2, nodes=1, folder=folder, config={}, device="cpu"
    )


@pytest.fixture
def stopped() -> Iterator[int]:
    with subprocess.Popen(SLEEPER, env={**os.environ, "LLMBENCH_HOSTFILE": "/here"}) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


def test_every_other_thread_is_told() -> None:
    """Each thread but the one that tells has its calls, the newest first, with file and line."""
    told: list[str] = []

    def tell() -> None:
        told.extend(thread_stacks())

    thread = threading.Thread(target=tell, name="teller")
    thread.start()
    thread.join()
    main = told[told.index(next(line for line in told if '"MainThread"' in line)) :]
    assert any(f"test_every_other_thread_is_told ({__file__}:" in line for line in main)
    assert not any('"teller"' in line for line in told)


def test_a_request_is_answered_once(tmp_path: Path) -> None:
    """Nothing is written before it is asked for, one file for each request, and on a full disk nothing is raised."""
    answers = iter("ab")
    answering = Answering(tmp_path, "mine.txt", lambda: next(answers))
    answering.look()
    assert not (tmp_path / "stacks").exists()
    for number, answer in ((1, "a"), (2, "b")):
        (tmp_path / "asked").write_text(str(number))
        answering.look()
        answering.look()
        assert (tmp_path / "stacks/mine.txt").read_text() == f"{number}\n{answer}"
    assert (tmp_path / "stacks/mine.txt").stat().st_mode & 0o077 == 0

    def full() -> str:
        raise OSError(28, "No space left on device")

    Answering(tmp_path, "mine.txt", full).look()


def test_a_stopped_rank_is_told_by_another(tmp_path: Path, stopped: int) -> None:
    """The first rank of a node tells the state of one that does not answer; one that has answered stays as it is."""
    (tmp_path / "steps").mkdir()
    start = {
        "event": "start", "schema": 1, "rank": 1, "world_size": 2, "local_rank": 1, "host": "n1", "pid": stopped,
        "device": "cpu", "versions": {}, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino, "time": 1.0,
    }  # fmt: skip
    (tmp_path / "steps/rank-00001.jsonl").write_text(json.dumps(start) + "\n")
    (tmp_path / "asked").write_text("1")
    answering = rank_answering(context(tmp_path))
    answering.look()
    assert not (tmp_path / "stacks/rank-00001.txt").exists()
    answering.look()
    assert (tmp_path / "stacks/rank-00001.txt").read_text().startswith("1\nthe process is stopped (T)")
    assert "MainThread" not in (tmp_path / "stacks/rank-00000.txt").read_text()  # it is the one that tells


def test_processes_of_a_framework_are_told(tmp_path: Path, stopped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver tells state and command of each process, asks py-spy if it is there, and leaves secrets out."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    mark = ("LLMBENCH_HOSTFILE", "/here")
    told = describe_marked(mark, {}, ["time.sleep"])
    assert f"process {stopped} is stopped (T)" in told
    assert "-c import time; ***(600)" in told
    assert told.endswith("the stacks of its processes are not known: py-spy is not installed\n")
    (tmp_path / "py-spy").write_text("""#!/bin/sh\necho 'Thread 1 (idle): "MainThread"'\necho "    $@"\n""")
    (tmp_path / "py-spy").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = describe_marked(mark, {"PATH": "/usr/bin:/bin"}, ())
    assert f'Thread 1 (idle): "MainThread"\n    dump --nonblocking --pid {stopped}' in told


def test_nccl_tells_what_it_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch has NCCL's flight recorder, a rank writes its collectives next to its stacks."""
    (tmp_path / "asked").write_text("1")
    rank_answering(context(tmp_path)).look()
    assert [path.name for path in (tmp_path / "stacks").iterdir()] == ["rank-00000.txt"]
    recorder = ModuleType("torch._C._distributed_c10d")
    monkeypatch.setattr(recorder, "_dump_nccl_trace_json", lambda *_: b'{"entries": []}', raising=False)
    monkeypatch.setitem(sys.modules, recorder.__name__, recorder)
    rank_answering(context(tmp_path)).look()
    assert json.loads((tmp_path / "stacks/rank-00000.nccl.json").read_text()) == {"entries": []}


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
