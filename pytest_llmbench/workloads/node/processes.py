"""Runs programs on a node, bounded in time and in kept output, and ends each with its process group."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# Time for a framework to write a checkpoint or a stack after SIGTERM, before it is killed.
_GRACE_S = 10.0
_KEPT_BYTES = 4 << 20  # of each program: a report of nvidia-smi on 16 GPUs has half a MiB
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Exit status and output of a program."""

    code: int | None  # its exit status; negative for a signal, None if it was ended at its time limit
    text: str  # the end of its output, with its errors unless they are apart
    errors: str = ""  # the end of its standard error, if that is apart

    @property
    def last_line(self) -> str:
        """The last line with text, cut to its end if it is long; empty without output."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, *, apart: bool = False) -> ProgramResult:
    """Run a program until it ends or its time is over; `env` is its whole environment.

    Its whole process group is ended with it. With `apart`, its standard error is not in its output. Raises OSError if
    the program is missing.
    """
    with os.fdopen(os.memfd_create("errors"), "r+b") as errors:
        how = {"stdout": subprocess.PIPE, "stderr": errors if apart else subprocess.STDOUT}
        with started(argv, env=dict(env), **how) as process:
            assert process.stdout is not None
            with process.stdout as output:
                text, in_time = _read(process, output, time.monotonic() + timeout_s)
                ended = process.poll()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _KEPT_BYTES))
        return ProgramResult(ended if in_time else None, text, errors.read().decode(errors="replace"))


def output_of(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, *, apart: bool = False) -> str | None:
    """Return the output of a program; None if it is missing, fails or exceeds its time."""
    try:
        result = ask(argv, env, timeout_s, apart=apart)
    except OSError:
        return None
    return result.text.strip() if result.code == 0 else None


@contextmanager
def started(argv: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program without input, in a group of its own that is ended with the block.

    A signal whose handler calls `leave` ends it as well; such a signal is delayed during the start, so that the program
    is always ended with its group. Further arguments are those of `subprocess.Popen`.
    """
    here = threading.current_thread() is threading.main_thread()  # which runs the handlers
    if here:
        _leaving.waits = True
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **how)
    except BaseException:
        if here:
            _leaving.may_go()
        raise
    try:
        if here:
            _leaving.may_go()
        yield process
    finally:
        _end_group(process)


def exit_now(code: int) -> None:
    """Exit without closing the process group, which would wait for ranks that hang or are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave(code: int) -> None:
    """End this process with an exit status; called by signal handlers."""
    _leaving.go(code)


class _Leaving:
    """Delays the end of the main thread while it starts a program."""

    def __init__(self) -> None:
        self.waits = False
        self._code: int | None = None

    def go(self, code: int) -> None:
        if not self.waits:
            raise SystemExit(code)
        self._code = code

    def may_go(self) -> None:
        self.waits = False
        if self._code is not None:
            raise SystemExit(self._code)


_leaving = _Leaving()


def _read(process: subprocess.Popen[bytes], output: IO[bytes], deadline: float) -> tuple[str, bool]:
    """Keep the end of a program's output until it ends; also return True if that was before the deadline.

    A program may print without end, close its output long before it ends, or leave others behind that hold it open.
    """
    kept, in_time, is_open = bytearray(), True, True
    while True:
        ended = process.poll() is not None
        if is_open and select.select([output], [], [], 0 if ended else _POLL_S)[0]:
            chunk = os.read(output.fileno(), 1 << 16)
            is_open = bool(chunk)
            kept += chunk
            if len(kept) > 2 * _KEPT_BYTES:
                del kept[:-_KEPT_BYTES]
        elif ended:
            break
        elif not is_open:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        if time.monotonic() > deadline:
            in_time = ended
            break
    return kept[-_KEPT_BYTES:].decode(errors="replace"), in_time


def _end_group(process: subprocess.Popen[Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and _alive(process):
            time.sleep(0.05)


def end_marked(name: str, value: str) -> None:
    """Kill every process that was started with this environment variable, in any process group.

    The ranks of torchrun, for example, are in sessions of their own and outlive a killed torchrun.
    """
    import psutil  # noqa: PLC0415 - most programs need no other end than their group's

    mark = f"{name}={value}".encode()
    deadline, empty_looks = time.monotonic() + _GRACE_S, 0
    # Two looks in a row must be empty: a killed process may have started others before, and the environment of a
    # process is empty during its `exec`.
    while empty_looks < 2 and time.monotonic() < deadline:
        killed = becoming = False
        for process in psutil.process_iter():
            environ = _environ(process.pid)
            with suppress(psutil.Error):
                if mark in environ:
                    killed = True
                    process.kill()  # psutil compares the start time first: the number may be another process's by now
                elif environ == [b""]:  # during `exec`; also for kernel threads and zombies, which have no program
                    becoming = bool(process.exe()) or becoming
        empty_looks = 0 if killed else empty_looks + 1
        if empty_looks < 2:
            time.sleep(0.05 if killed or becoming else 0.01)


def marked(name: str, value: str) -> Iterator[int]:
    """Yield the processes of this node that have this environment variable."""
    import psutil  # noqa: PLC0415 - as above

    mark = f"{name}={value}".encode()
    yield from (pid for pid in psutil.pids() if mark in _environ(pid))


def _environ(pid: int) -> list[bytes]:
    """Read the environment of a process; empty if it belongs to another user or has ended.

    psutil reads up to the first empty entry. A process that shows a title writes it over its first variables.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _alive(process: subprocess.Popen[Any]) -> bool:
    process.poll()  # reaps the process, which would otherwise count as a member of its group
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
