"""Causes the fault of `--llmbench-simulate` in this rank, as really as is possible without root."""

import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_llmbench.core.wire.fault import FaultName, SimulatedFault, note_strike
from pytest_llmbench.core.wire.step_events import Phase, StepEvent
from pytest_llmbench.workloads.rank.context import RankContext

_FIRST_STEP_S = 1.0
_FACTOR = 1.5
_BYTES_BEYOND_ANY_MACHINE = 1 << 50


class Simulation:
    """The fault of one rank: the last one, or all ranks of the last node for `lost-node`."""

    def __init__(self, fault: SimulatedFault, context: RankContext) -> None:
        self._fault, self._context, self._step = fault, context, fault.step or 1
        ranks = context.ranks_per_node if fault.name == "lost-node" else 1
        self._mine = context.rank >= context.world_size - ranks
        self._slow_in = 0
        self._fastest_s: float | None = None
        self._struck = False

    def enter(self, step: int, phase: Phase) -> None:
        """Strike when the fault is due; called when the rank enters a phase."""
        fault = self._fault
        if not self._mine or phase != "forward" or step < self._step:
            return
        if fault.name == "slow-rank" and step > self._slow_in:
            self._strike()
            self._slow_in = step
            time.sleep(self._fastest_s or _FIRST_STEP_S)
        elif fault.name in _STRIKES and not self._struck:
            self._strike()
            _STRIKES[fault.name](self._context)

    def logged(self, event: StepEvent) -> bytes:
        """Return the log lines of a step, damaged by the fault if it is due."""
        fault = self._fault
        if event.step < self._step:
            self._fastest_s = min(self._fastest_s or event.seconds, event.seconds)
        elif self._mine and fault.name == "wrong-numbers" and isinstance(event.grad_norm, float):
            #: fault wrong-numbers: from that step on, it logs a gradient norm 1.5 times as large as the others
            self._strike()
            event = replace(event, grad_norm=_FACTOR * event.grad_norm)
        elif self._mine and fault.name == "nan" and event.step == self._step:
            self._strike()  #: fault nan: it logs `nan` as the loss
            event = replace(event, loss="nan")
        elif self._mine and fault.name == "damaged-log" and event.step == self._step:
            self._strike()  #: fault damaged-log: half of the step's line is missing in its step log
            line = event.line()
            return line[: len(line) // 2] + b"\n"
        return event.line()

    def _strike(self) -> None:
        if not self._struck:
            note_strike(self._context.folder, self._context.rank, self._fault)
            self._struck = True


def _hang(_: RankContext) -> None:
    while True:
        time.sleep(60.0)


def _exhaust(context: RankContext) -> None:
    if context.device == "cuda":
        import torch  # noqa: PLC0415 - only where it is used anyway

        torch.empty(_BYTES_BEYOND_ANY_MACHINE, dtype=torch.uint8, device="cuda")
    bytearray(_BYTES_BEYOND_ANY_MACHINE)


def _fill_disk(_: RankContext) -> None:
    """Make every later write to a file fail, by the limit of file sizes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _signal(number: signal.Signals) -> Callable[[RankContext], None]:
    return lambda _: os.kill(os.getpid(), number)


#: fault slow-rank: from that step on, each of its steps takes twice as long
_STRIKES: Mapping[FaultName, Callable[[RankContext], None]] = {
    "die": _signal(signal.SIGKILL),  #: fault die: it is killed (SIGKILL)
    "stop": _signal(signal.SIGSTOP),  #: fault stop: it is stopped (SIGSTOP)
    "lost-node": _signal(signal.SIGKILL),  #: fault lost-node: all ranks of the last node are killed together (SIGKILL)
    "hang": _hang,  #: fault hang: it sleeps for ever
    "oom": _exhaust,  #: fault oom: it asks for 1 PiB of memory, on a GPU of the GPU's
    "full-disk": _fill_disk,  #: fault full-disk: it can write no file any more
}
