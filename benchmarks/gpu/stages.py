"""Stages of a visit to a machine: commands one after the other, each with a share of the time that there is.

It needs Python alone, so that what else is missing can be said before anything starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
# For pytest to cancel its jobs and write its reports, after an interrupt; of a short stage a third of its time.
_GRACE_S = 15.0
_VARIABLES = {
    # NVLink multicast stays off: TaskProlog sees to that in Slurm's jobs, and this without Slurm.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    # It then says which way it takes.
    "NCCL_DEBUG": "INFO",
    "COLUMNS": "120",
}


class LeftOut(Exception):  # noqa: N818 - no error: what it takes is not here
    """A stage cannot start; says why, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One command of a visit."""

    name: str  # also that of its folder
    seconds: float  # its share; it has what those before it have left as well
    # The command, made when it starts and told the seconds until it is interrupted; raises `LeftOut`.
    command: Callable[[float], Sequence[str]]
    good: tuple[int, ...] = (0,)  # exit statuses of one that ran to its end


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a stage came to its end."""

    name: str
    seconds: float
    how: str  # in words
    good: bool  # whether it ran to its end

    def __str__(self) -> str:
        return f"{self.name:11}{self.seconds:6.1f} s, {self.how}"


def shares(weights: Mapping[str, float], chosen: Iterable[str], seconds: float) -> dict[str, float]:
    """Divide seconds among the stages that were chosen, by their weights."""
    of_chosen = {name: weights[name] for name in chosen}
    return {name: seconds * weight / sum(of_chosen.values()) for name, weight in of_chosen.items()}


def environment(**more: str) -> dict[str, str]:
    """Variables of every stage: those of this process, of `more`, of NCCL, and where the checkout is."""
    path = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **more, **_VARIABLES, "PYTHONPATH": path}


def ran(stages: Iterable[Stage], work: Path, env: Mapping[str, str]) -> Iterator[Ended]:
    """Run stages one after the other, each in its folder of `work`; one that fails or is late ends no other.

    Yields:
        How each ended, before the next starts.
    """
    deadline = time.monotonic()
    for stage in stages:
        started = time.monotonic()
        deadline += stage.seconds
        how, good = _ran(stage, work / stage.name, env, deadline)
        yield Ended(name=stage.name, seconds=time.monotonic() - started, how=how, good=good)


def _ran(stage: Stage, folder: Path, env: Mapping[str, str], deadline: float) -> tuple[str, bool]:
    (folder / "nccl").mkdir(parents=True)
    left = max(deadline - time.monotonic(), 1.0)
    soft_s = left - min(_GRACE_S, left / 3)
    try:
        command = stage.command(soft_s)
    except LeftOut as reason:
        return f"left out: {reason}", False
    status = _run(command, folder, {**env, "NCCL_DEBUG_FILE": f"{folder}/nccl/%h-%p.txt"}, soft_s, left - soft_s)
    if status is None:
        return "late, and ended", False
    return f"exit status {status}", status in stage.good


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str], soft_s: float, grace_s: float) -> int | None:
    """Run a command; after `soft_s` it is interrupted, and killed when it has not ended `grace_s` later.

    Returns:
        Its exit status; None where it was late.
    """
    with (folder / "terminal.txt").open("wb") as terminal:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.STDOUT, env=env, cwd=_CHECKOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(soft_s)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    except BaseException:  # this visit is itself interrupted
        _kill(process)
        raise
    _kill(process)
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
