"""Entry point of every rank of a check's step: `python -m pytest_llmbench.workloads.rank.probe FOLDER`.

`FOLDER/task.json` is a `core.wire.task.Task`. Its function is called with a `RankContext` and a `ProbeLog`, and returns
plain data or a model: the rank's answer, in `FOLDER/answers/rank-00000.json`. A rank that raises answers with the
reason and ends with status 0, as the reason is a finding, too. The current phase of a rank is in
`FOLDER/phase/rank-00000`, so that a hanging rank can be reported with its phase.

This module avoids the imports of torch and pydantic: most probes read files, and would be slower on hundreds of nodes.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import NOT_MEASURED
from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.workloads.node import machine_lock
from pytest_llmbench.workloads.rank import deadman
from pytest_llmbench.workloads.rank.context import RankContext, arrive, entry_of

_PHASE_BYTES = 128
_LONGEST_ERROR = 2000


class ProbeLog:
    """Log of a rank of a probe while it runs."""

    def __init__(self, context: RankContext) -> None:
        path = layout.phase(context.folder, context.rank)
        make_folder(path.parent)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.phase("start")

    def phase(self, what: str) -> None:
        """Write the current work of this rank, such as `all_reduce of 8 MiB`."""
        line = f"{host_name()} {what}".encode("ascii", "replace")[: _PHASE_BYTES - 1]
        os.pwrite(self._file, line.ljust(_PHASE_BYTES - 1) + b"\n", 0)


def host_name() -> str:
    """Return this node's name, as Slurm has it in a Slurm step."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def run_probe(folder: str) -> None:
    """Run the task of a step's folder as the rank given by the environment.

    Raises LLMBenchError if the folder lacks a task, or the launcher started another number of ranks.
    """
    task, context = arrive(Path(folder))
    log = ProbeLog(context)
    if task.owner is not None:
        machine_lock.hold(task.owner.machine_lock)
        deadman.watch(task.owner.path, task.owner.ttl_s, partial(_owner_gone, context, log))
    try:
        data = entry_of(task)(context, log)
        _write(context, {"data": data.model_dump() if hasattr(data, "model_dump") else data})
    except KeyboardInterrupt:
        raise  # a hanging rank is ended from outside, and its phase is already written
    except BaseException as error:  # noqa: BLE001 - whatever else it is, it is this rank's answer
        traceback.print_exc()
        _write_failure(context, log, _missing(error) or f"{type(error).__name__}: {error}".removesuffix(": "))
        if context.world_size > 1:
            os._exit(0)  # destroying a group that lost a rank may hang
    else:
        log.phase("done")


def _missing(error: BaseException) -> str:
    """The message about missing software, with the cure; empty for any other error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in {"", "pytest_llmbench"}:
        return ""
    cure = "pytest-llmbench[torch]" if name in {"torch", "numpy"} else name
    return f"{NOT_MEASURED}: {name} is not installed for {sys.executable}: {sys.executable} -m pip install '{cure}'"


def _owner_gone(context: RankContext, log: ProbeLog, reason: str) -> None:
    _write_failure(context, log, f"OwnerGone: {reason}")
    os._exit(0)


def _write_failure(context: RankContext, log: ProbeLog, reason: str) -> None:
    folded = " ".join(reason.split())[:_LONGEST_ERROR]
    _write(context, {"why": folded.encode(errors="backslashreplace").decode()})
    log.phase("failed")


def _write(context: RankContext, answer: Mapping[str, Any]) -> None:
    """Write the answer as strict JSON; NaN and infinities raise ValueError."""
    who = {"host": host_name(), "rank": context.rank, "local_rank": context.local_rank}
    write_text(layout.answer(context.folder, context.rank), json.dumps({**who, **answer}, allow_nan=False))


if __name__ == "__main__":
    run_probe(sys.argv[1])
