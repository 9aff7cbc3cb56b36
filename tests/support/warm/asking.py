"""Ask for a session of pytest by a Python that has started before: see `serving.py`.

As a program, it stands for the session: `python -I -S asking.py SOCKET KIND ARGUMENT...` has its streams, environment
and exit status. It imports nothing but the standard library, as it is started wherever a second matters.
"""

import array
import contextlib
import fcntl
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

REFUSED = -1000


class RefusedError(Exception):
    """A session that needs a new Python: its own modules have names that are imported already."""


def address() -> Path:
    """Where the server of this run of tests listens: workers of one run share it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    folder = Path(f"/tmp/llmbench-warm-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / run


def may_ask(args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a session can do with what is imported: it has the plugin, and changes nothing of how Python starts."""
    of_python = {name for name, value in environment.items() if name.startswith("PYTHON") and value}
    able = hasattr(os, "pidfd_open")  # not on macOS
    return (
        able
        and "no:llmbench" not in args
        and of_python
        <= {
            "PYTHONPATH",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONHASHSEED",
            "PYTHONUNBUFFERED",
        }
    )


def ask(
    kind: str, args: Sequence[str], *, cwd: Path, environment: Mapping[str, str], streams: Sequence[int], at: Path
) -> socket.socket:
    """Start a session; what is returned gives its exit status to `status_of`."""
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
        except OSError:
            server.close()
            _start(at)
        else:
            return server
    raise OSError(f"no server answers at {at}")


def status_of(server: socket.socket) -> int:
    """Wait for the exit status of a session.

    Raises:
        RefusedError: it needs a new Python.
    """
    answer = server.recv(4)
    if len(answer) < 4:
        raise OSError("the session was lost with its server")
    status = int.from_bytes(answer, "big", signed=True)
    if status == REFUSED:
        raise RefusedError
    return status


def run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m pytest ARGUMENT...` to its end, in a forked session if it can do with one.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    args = command[3:]
    if not may_ask(args, environment):
        return _new(command, cwd, environment, timeout_s)
    read, write = os.pipe()
    with os.fdopen(read, encoding="utf-8") as output, Path(os.devnull).open() as nothing:
        try:
            streams = (nothing.fileno(), write, write)
            server = ask("module", args, cwd=cwd, environment=environment, streams=streams, at=address())
        finally:
            os.close(write)
        with server:
            killed = threading.Timer(timeout_s, server.shutdown, [socket.SHUT_RDWR])
            killed.start()
            try:
                text = output.read()
                return subprocess.CompletedProcess(list(command), status_of(server), text)
            except RefusedError:
                return _new(command, cwd, environment, timeout_s)
            except OSError as error:
                if killed.is_alive():
                    raise
                raise subprocess.TimeoutExpired(list(command), timeout_s, text) from error
            finally:
                killed.cancel()


def _new(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=dict(environment), text=True, timeout=timeout_s, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _start(at: Path) -> None:
    """Have a server listen, unless another has started one meanwhile."""
    with _lock(at.with_name(f"{at.name}.lock")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(at))
            return
        at.unlink(missing_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "LLMBENCH_", "PYTHON"))}
        log = at.with_name(f"{at.name}.log")
        with log.open("w") as said, Path(os.devnull).open() as nothing:
            os.posix_spawn(  # it ends itself, and is not waited for
                sys.executable, [sys.executable, str(Path(__file__).with_name("serving.py")), str(at)], clean,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, said.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, said.fileno(), 2),
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


def script(folder: Path) -> Path:
    """Write a `pytest` to put first in somebody's PATH; returns its folder."""
    folder.mkdir(exist_ok=True)
    command = shlex.join([sys.executable, "-I", "-S", __file__, str(address()), "script"])
    (folder / "pytest").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "pytest").chmod(0o755)
    return folder


def main() -> None:
    """Stand for a session."""
    at, kind, *args = sys.argv[1:]
    if may_ask(args, os.environ):
        with contextlib.suppress(RefusedError):
            server = ask(kind, args, cwd=Path.cwd(), environment=os.environ, streams=(0, 1, 2), at=Path(at))
            status = status_of(server)
            if status < 0:
                os.kill(os.getpid(), -status)
            os._exit(status)
    new = {"code": ["-u", "-c"], "script": [str(Path(sys.executable).with_name("pytest"))]}[kind]
    os.execv(sys.executable, [sys.executable, *new, *args])


if __name__ == "__main__":
    main()
