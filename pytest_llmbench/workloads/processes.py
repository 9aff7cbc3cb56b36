"""Programs that a node is asked to run: bounded in time and in what is kept of their output, ended as a group."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# Frameworks that are asked to end write a checkpoint or a stack first; then they are killed.
_GRACE_S = 10.0
_KEPT_BYTES = 1 << 20
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program left.

    Attributes:
        code: its exit status; negative for a signal, None when it was ended for taking too long.
        text: the end of what it printed, errors among it unless they were left out.
    """

    code: int | None
    text: str

    @property
    def last_line(self) -> str:
        """The last line with anything on it, its end where it is long; empty when nothing was printed."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, *, errors: bool = True) -> Answer:
    """Run a program to its end, or to the end of its time. Whatever it started is ended with it.

    Args:
        argv: the program and its arguments.
        env: all of its environment variables.
        timeout_s: its time, seconds.
        errors: whether to keep what it prints as errors, too.

    Raises:
        OSError: there is no such program.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(env), start_new_session=True,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as output:
        try:
            text, in_time = _read(process, output, time.monotonic() + timeout_s)
        finally:
            end_group(process)
    return Answer(process.wait() if in_time else None, text)


def _read(process: subprocess.Popen[bytes], output: IO[bytes], deadline: float) -> tuple[str, bool]:
    """Keep the end of what a program prints until it ends; also whether that was before the deadline.

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
            time.sleep(_POLL_S)
        if time.monotonic() > deadline:
            in_time = ended
            break
    return kept[-_KEPT_BYTES:].decode(errors="replace"), in_time


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process and everything in its process group: first with SIGTERM, then with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and _alive(process):
            time.sleep(0.05)


def end_marked(name: str, value: str) -> None:
    """Kill every process that was started with this environment variable, whatever group it made for itself.

    The ranks of torchrun, for one, are in sessions of their own, and outlive it where it is killed.
    """
    mark = f"{name}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _alive(process: subprocess.Popen[Any]) -> bool:
    process.poll()  # one that is not waited for counts as a member of its group
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
