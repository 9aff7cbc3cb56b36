"""Entry point of each task of our Slurm jobs: `python -m pytest_llmbench.workloads.node.begin FOLDER`.

It replaces submitit's, which loads a pickle and costs each rank a quarter of a second of CPU time to import.
"""

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import FrameType

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.wire.beginning import Beginning, job_file, result_file
from pytest_llmbench.workloads.node.shared_files import wait_for

# The session renames the file to the job's id once it has the id. The job waits for the file before it runs any code.
_PATIENCE_S = 60.0


def main(folder: Path) -> None:
    """Execute the call that the folder has for the job of this process, and write its result.

    Raises ConfigError if the session failed to claim the job within a minute, or the file is damaged, and Exception of
    the function, whose traceback is in the result's file too.
    """
    job, task = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_PROCID", "0")
    if not wait_for(file := job_file(folder, job), _PATIENCE_S, shortest_s=0.01):
        raise ConfigError(f"{file}: not there after {_PATIENCE_S:g} s: the session does not know of this job")
    beginning = Beginning.read(file)
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, _pass_over)
    if beginning.folder is not None:
        os.chdir(beginning.folder)
    result = result_file(folder, job, task)
    try:
        module, _, function = beginning.entry.partition(":")
        getattr(importlib.import_module(module), function)(*beginning.arguments)
    except Exception:
        write_text(result, json.dumps({"error": traceback.format_exc()}), mode=PRIVATE)
        raise
    write_text(result, json.dumps({"error": None}), mode=PRIVATE)


def _pass_over(number: int, _frame: FrameType | None) -> None:
    """Ignore a signal: Slurm sends SIGTERM long before it kills, and a rank can still write its state."""
    print(f"{socket.gethostname()} passes over {signal.Signals(number).name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
