"""Entry point of every rank: `python -m pytest_llmbench.workloads.rank.main FOLDER`, or `run_rank` in a job."""

import atexit
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.notes import note_pause, note_second_start
from pytest_llmbench.workloads.node import machine_lock, stacks
from pytest_llmbench.workloads.node.machine import device_name, gpu_identity, versions
from pytest_llmbench.workloads.node.processes import exit_now
from pytest_llmbench.workloads.rank import deadman, gpu_samples
from pytest_llmbench.workloads.rank.context import arrive, entry_of
from pytest_llmbench.workloads.rank.steplog import StepLog

# EX_TEMPFAIL of sysexits.h: the run's owner went away.
OWNER_GONE = 75


def run_rank(folder: str) -> None:
    """Run the task of a run's folder as the rank given by the environment.

    The process ends with status 75 when the run's owner goes away. Raises LLMBenchError if the folder lacks a task, or
    the launcher started another number of ranks, and Exception of the task, whose first line is in the step log too.
    """
    task, context = arrive(Path(folder))
    try:
        own_log = StepLog(context)
    except RunError as error:
        if error.kind == "ran_before":
            note_second_start(context.folder, layout.rank_name(context.rank))
        raise
    with own_log as log, ExitStack() as watch:
        if task.owner is not None:
            machine_lock.hold(task.owner.machine_lock)
            stood_still = partial(note_pause, context.folder, layout.rank_name(context.rank))
            answering = stacks.rank_answering(context)

            def look_around() -> None:
                stacks.print_if_silent()
                answering.look()

            deadman.watch(task.owner.path, task.owner.ttl_s, partial(_leave, log), stood_still, look_around)
        try:
            log.start(device_name(context), versions(), gpu_identity(context))
            watch.enter_context(gpu_samples.sampled(context, log))
            entry_of(task)(context, log)
        except BaseException as error:
            if context.world_size > 1:
                atexit.register(exit_now, 1)
            log.failure(f"{type(error).__name__}: {error}".removesuffix(": "))  # on a full disk, this raises as well
            raise
        watch.close()
        log.end()


def _leave(log: StepLog, reason: str) -> None:
    log.failure(f"OwnerGone: {reason}")
    os._exit(OWNER_GONE)


if __name__ == "__main__":
    run_rank(sys.argv[1])
