"""Ranks that are forked from a process which has imported PyTorch: that takes longer than their training does.

They are processes of their own all the same, with their own environment, output and exit status, and run the same
module as the ranks that a launcher starts.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

RANK = "pytest_llmbench.workloads.rank.main"
# Modules that every engine imports at its first step, and models of engine deepspeed.
_SHARED = ["torch", "torch._dynamo", "torch.distributed.fsdp", "transformers.models.opt.modeling_opt"]
_FORKS = multiprocessing.get_context("forkserver")


class ForkedRank:
    """The part of `subprocess.Popen` that tests use, of a rank that was not started anew."""

    def __init__(self, folder: Path, env: Mapping[str, str], output: Path) -> None:
        _FORKS.set_forkserver_preload(_SHARED)
        self._process = _FORKS.Process(target=_run, args=(str(folder), dict(env), str(output)), daemon=True)
        self._process.start()

    def wait(self, timeout: float) -> int:
        """The exit status; minus the signal where one ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(RANK, timeout)
        return code

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.join()


def _run(folder: str, env: Mapping[str, str], output: str) -> None:
    """Be the rank, in the new process."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(env)
    sys.path.insert(0, env["PYTHONPATH"])
    sys.argv = [RANK, folder]
    try:
        runpy.run_module(RANK, run_name="__main__", alter_sys=True)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()  # a forked process leaves them out; a failed rank ends itself in one
