"""Ask for a session of pytest, or for a rank, by a Python that has started before: see `serving.py`.

As a program, it stands for the session: `python -I -S asking.py SOCKET KIND ARGUMENT...` has its streams, environment
and exit status. It imports nothing but the standard library, as it is started wherever a second matters.
"""

import array
import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

REFUSED = -1000


class RefusedError(Exception):
    """A session that needs a new Python: its own modules have names that are imported already."""


def address(imported: str = "pytest") -> Path:
    """The socket of the server that has imported `pytest` or `torch`: workers of one run of tests share it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    folder = Path(f"/tmp/llmbench-warm-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{run}.{imported}"


def may_ask(args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a session can do with what is imported: it has the plugin, and changes nothing of how Python starts."""
    of_python = {name for name, value in environment.items() if name.startswith("PYTHON") and value}
    able = hasattr(os, "pidfd_open")  # not on macOS
    return (
        able
        and "no:llmbench" not in args
        and of_python <= {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUNBUFFERED"}
        and "ATEN_CPU_CAPABILITY" not in environment  # read when PyTorch is imported
    )


def ask(
    kind: str, args: Sequence[str], *, cwd: Path, environment: Mapping[str, str], streams: Sequence[int], at: Path
) -> tuple[socket.socket, int]:
    """Start a session; returns what gives its exit status to `status_of`, and its process id.

    Raises:
        RefusedError: it needs a new Python.
    """
    for _ in range(3):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(at))
            request: dict[str, object] = {"kind": kind, "args": list(args), "cwd": str(cwd), "env": dict(environment)}
            request["cpus"] = list(os.sched_getaffinity(0))
            text = json.dumps(request).encode()
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
            server.sendmsg([len(text).to_bytes(8, "big")], [rights])
            server.sendall(text)
            pid = status_of(server)
        except OSError:
            server.close()
            start_server(at)
        else:
            if pid == REFUSED:
                server.close()
                raise RefusedError
            return server, pid
    raise OSError(f"no server answers at {at}")


def status_of(server: socket.socket) -> int:
    """Wait for the exit status of a session."""
    answer = server.recv(4)
    if len(answer) < 4:
        raise OSError("the session was lost with its server")
    return int.from_bytes(answer, "big", signed=True)


class Forked:
    """The part of `subprocess.Popen` that tests use, of a session or rank that is forked from another Python.

    It has an environment, output and exit status of its own, and runs the module that a new Python would run.

    Attributes:
        returncode: minus the signal where one ended it; None before `wait` or `poll` has seen the end.
    """

    def __init__(
        self, args: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[str] | IO[bytes],
        imported: str = "pytest", stdout: IO[str] | None = None, at: Path | None = None, kind: str = "module",
    ) -> None:  # fmt: skip
        """Run `python -m ARGUMENT...` there, whose output can be read from `stdout`, if that is given."""
        self.args, self.stdout = list(args), stdout
        self.returncode: int | Any = None
        with Path(os.devnull).open() as nothing:
            streams, at = (nothing.fileno(), output.fileno(), output.fileno()), at or address(imported)
            self._server, self.pid = ask(kind, self.args, cwd=cwd, environment=env, streams=streams, at=at)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                self.returncode = status_of(self._server)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All of its output, at its end; it is killed when it does not end in time.

        Raises:
            subprocess.TimeoutExpired: it was.
        """
        late = False

        def kill() -> None:
            nonlocal late
            late = True
            self.kill()

        end = threading.Timer(timeout or 1e6, kill)
        end.start()
        assert self.stdout is not None
        with self.stdout:
            text = self.stdout.read()
        self.wait()
        end.cancel()
        if late:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, text)
        return text, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()


def start(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str] | Forked:
    """Start `python -m MODULE ARGUMENT...`, in a forked session if it can do with one; its output can be read."""
    if may_ask(command[2:], environment):
        read, write = (os.fdopen(end, mode, encoding="utf-8") for end, mode in zip(os.pipe(), "rw", strict=True))
        with write:
            try:
                return Forked(command[2:], cwd, environment, write, stdout=read)
            except RefusedError:
                read.close()
    return subprocess.Popen(
        command, cwd=cwd, env=dict(environment), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENT...` to its end, as `start` does.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    with start(command, cwd=cwd, environment=environment) as process:
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.wait(), text)


def start_server(at: Path, *tests: str) -> None:
    """Have a server listen, unless another has started one meanwhile; it imports `tests`, if they are given."""
    with _lock(at.with_name(f"{at.name}.lock")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(at))
            return
        at.unlink(missing_ok=True)
        others = ("PYTEST_", "COV_", "PYTHON", *(() if tests else ("LLMBENCH_",)))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        # There are more ranks than cores; and a process with a pool of compilers must not fork.
        clean |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        log = at.with_name(f"{at.name}.log")
        with log.open("w") as said, Path(os.devnull).open() as nothing:
            os.posix_spawn(  # it ends itself, and is not waited for
                sys.executable, [sys.executable, str(Path(__file__).with_name("serving.py")), str(at), *tests], clean,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, said.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, said.fileno(), 2),
                    # A lock or pipe of the shell that runs the tests must be free while the server waits.
                    *((os.POSIX_SPAWN_CLOSE, number) for number in range(3, 256)),
                ],
                setsid=True,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while not at.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fork_workers(tests: Sequence[str]) -> None:
    """Have pytest-xdist, in this process, fork its workers from a Python that has imported these tests."""
    at = address("tests")
    if may_ask((), os.environ):
        from execnet import gateway_io  # noqa: PLC0415 - a program that asks imports nothing of others

        start_server(at, *tests)
        first = "import sys;exec(eval(sys.stdin.readline()))"  # execnet's first line for a new Python
        command = [sys.executable, "-I", "-S", __file__, str(at), "worker", first]
        vars(gateway_io)["popen_args"] = lambda _spec: command


def script(folder: Path) -> Path:
    """Write a `pytest` to put first in somebody's PATH; returns its folder."""
    folder.mkdir(exist_ok=True)
    program = str(Path(__file__).with_name("standing.py"))
    command = shlex.join([sys.executable, "-I", "-S", program, str(address()), "script"])
    (folder / "pytest").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "pytest").chmod(0o755)
    return folder


def main() -> None:
    """Stand for a session."""
    at, kind, *args = sys.argv[1:]
    if may_ask(args, os.environ):
        with contextlib.suppress(RefusedError):
            server, pid = ask(kind, args, cwd=Path.cwd(), environment=os.environ, streams=(0, 1, 2), at=Path(at))
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: os.kill(pid, number))
            status = status_of(server)
            if status < 0:
                with contextlib.suppress(OSError):
                    signal.signal(-status, signal.SIG_DFL)
                os.kill(os.getpid(), -status)
            os._exit(status)
    new = {
        "code": ["-u", "-c"], "worker": ["-u", "-c"], "module": ["-u", "-m"],
        "script": [str(Path(sys.executable).with_name("pytest"))],
    }[kind]  # fmt: skip
    os.execv(sys.executable, [sys.executable, *new, *args])


if __name__ == "__main__":
    main()
