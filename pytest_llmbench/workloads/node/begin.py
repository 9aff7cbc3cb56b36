"""Entry point of each task of our Slurm jobs: `python -m pytest_llmbench.workloads.node.begin FOLDER`.

It replaces submitit's, which loads a pickle and costs each rank a quarter of a second of CPU time to import.
"""

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.wire.beginning import Beginning, job_file, result_file

# The session renames the file to the job's id once it has the id. The job waits for the file before it runs any code.
_PATIENCE_S = 60.0
_SHORTEST_S, _LONGEST_S = 0.01, 1.0


def main(folder: Path) -> None:
    """Call what the folder has for the job of this process, and write how that ended.

    Raises:
        ConfigError: the session failed to claim the job within a minute, or the file is damaged.
        Exception: any exception of the function; its traceback is in the result's file too.
    """
    job, task = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_PROCID", "0")
    beginning = Beginning.read(_wait_for_file(job_file(folder, job)))
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, _pass_over)
    if beginning.folder is not None:
        os.chdir(beginning.folder)
    result = result_file(folder, job, task)
    try:
        _entry(beginning.entry)(*beginning.arguments)
    except Exception:
        write_text(result, json.dumps({"error": traceback.format_exc()}), mode=PRIVATE)
        raise
    write_text(result, json.dumps({"error": None}), mode=PRIVATE)


def _wait_for_file(path: Path) -> Path:
    """Wait for a file that the session on another node is about to rename."""
    deadline, pause = time.monotonic() + _PATIENCE_S, _SHORTEST_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise ConfigError(f"{path}: not there after {_PATIENCE_S:g} s: the session does not know of this job")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_S)
    return path


def _entry(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    entry: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return entry


def _pass_over(number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Slurm sends SIGTERM long before it kills: a rank can still write how far it came."""
    print(f"{socket.gethostname()} passes over {signal.Signals(number).name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
