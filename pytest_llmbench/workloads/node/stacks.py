"""The stacks of a run's processes, written to its folder when its session requests them, because the run may hang.

A rank answers from a thread of its own, which runs while the rank waits for others. A rank that keeps Python's lock
prints its stacks into its log (`print_if_silent`). For a rank that is stopped or blocked in the kernel, another rank of
its node writes its state by the kernel. For a framework the driver runs `py-spy`, if that is installed and permitted.
"""

import faulthandler
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pytest_llmbench.core.files import PRIVATE, read_text, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.foreign import redacted
from pytest_llmbench.workloads.node.processes import ask, marked
from pytest_llmbench.workloads.node.shared_files import exists_now
from pytest_llmbench.workloads.rank.context import RankContext

# Shorter than the silence after which the session requests stacks.
_SILENT_S = 45.0
_STDERR = 2
_SPY_S = 5.0
_MOST_PROCESSES = 32
_STATES = {"T": "stopped", "t": "stopped by a tracer", "D": "waiting for a disk or a driver", "Z": "dead"}


class Answering:
    """Answers each request of the session with the file `name` in `stacks/`; `look` is called every few seconds.

    `describe` returns the content of that file, and `then` is called at the look after an answer.
    """

    def __init__(
        self, folder: Path, name: str, describe: Callable[[], str], then: Callable[[str], None] | None = None
    ) -> None:
        self._folder, self._name, self._describe, self._then = folder, name, describe, then
        self._answered: str | None = None
        self._follows = False

    def look(self) -> None:
        """Answer a new request, if there is one; a full disk is ignored, so that the rank goes on."""
        with suppress(OSError):
            file = self._folder / layout.ASKED
            asked = file.read_text(encoding="ascii").strip() if exists_now(file) else None
            if asked != self._answered:
                self._answered, self._follows = asked, self._then is not None
                write_text(self._folder / layout.STACKS / self._name, f"{asked}\n{self._describe()}", mode=PRIVATE)
            elif self._follows and self._then is not None:
                self._follows = False
                self._then(asked or "")


def rank_answering(context: RankContext) -> Answering:
    """Build the answer of a rank, which also answers for silent ranks of its node if it is the first there."""

    def for_others(asked: str) -> None:
        first = context.rank - context.local_rank
        for rank in range(first, first + context.ranks_per_node):
            answer = layout.stacks(context.folder, rank)
            silent = (read_text(answer) or "").partition("\n")[0] != asked
            if silent and (state := _state_of(context.folder, rank)) is not None:
                write_text(answer, f"{asked}\nthe process is {state}\n", mode=PRIVATE)

    own = layout.stacks(context.folder, context.rank)

    def describe() -> str:
        _write_collectives(own.with_suffix(".nccl.json"))
        return "\n".join(thread_stacks()) + "\n"

    return Answering(context.folder, own.name, describe, for_others)


def _write_collectives(path: Path) -> None:
    """Write the records of NCCL's flight recorder, if this rank's PyTorch has one."""
    torch = sys.modules.get("torch._C._distributed_c10d")
    if torch is not None and hasattr(torch, "_dump_nccl_trace_json"):
        write_text(path, torch._dump_nccl_trace_json(True, False).decode(), mode=PRIVATE)  # noqa: SLF001


def print_if_silent() -> None:
    """Print all stacks to the process's log unless called again in time; works while Python is blocked."""
    faulthandler.dump_traceback_later(_SILENT_S, file=_STDERR)


def thread_stacks() -> Iterator[str]:
    """Yield the stack of each other thread of this process, the newest call first, without reading a file."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, newest in sys._current_frames().items():  # noqa: SLF001 - documented
        if ident == threading.get_ident():
            continue
        yield f'Thread "{names.get(ident, ident)}" of process {os.getpid()}:'
        frame = newest
        while frame is not None:
            code = frame.f_code
            yield f"    {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
            frame = frame.f_back  # type: ignore[assignment]


def describe_marked(mark: tuple[str, str], env: Mapping[str, str], secrets: Collection[str]) -> str:
    """Describe every process of this node that has an environment variable, with its stacks if py-spy can read them."""
    spy = shutil.which("py-spy")
    parts = []
    for pid in list(marked(*mark))[:_MOST_PROCESSES]:
        words = (read_text(Path(f"/proc/{pid}/cmdline")) or "").replace("\0", " ").strip()
        parts.append(f"process {pid} is {_state(pid) or 'gone'}: {words[:300]}")
        if spy is not None and "python" in words:
            parts.append(ask([spy, "dump", "--nonblocking", "--pid", str(pid)], env, _SPY_S).text)
    if spy is None:
        parts.append("the stacks of its processes are not known: py-spy is not installed")
    return redacted("\n".join(parts) + "\n", secrets)


def _state_of(folder: Path, rank: int) -> str | None:
    """Return the state of another rank's process; None if it is in another container or its log is unreadable."""
    from pytest_llmbench.core.wire.step_events import StartEvent, parse_event  # noqa: PLC0415 - drivers do without it

    with suppress(OSError, ValueError), (folder / layout.STEPS / layout.step_log(rank)).open("rb") as log:
        start = parse_event(log.readline())
        if isinstance(start, StartEvent) and start.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino:
            return _state(start.pid)
    return None


def _state(pid: int) -> str | None:
    stat = read_text(Path(f"/proc/{pid}/stat")) or ""
    letter = stat.rpartition(")")[2].split()[:1]
    if not letter:
        return None
    waits = read_text(Path(f"/proc/{pid}/wchan")) or ""
    where = f" in {waits}" if waits.strip("0") else ""
    return f"{_STATES.get(letter[0], 'alive')} ({letter[0]}){where}"
