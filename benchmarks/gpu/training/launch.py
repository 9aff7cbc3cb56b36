"""Starting the ranks of one launch on this machine, as `--cluster local` does, and ending them when they are over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.wire.task import Owner, Task
from pytest_llmbench.engines.base import RankTask
from pytest_llmbench.readers.steps.progress import laggards

CHECKOUT = Path(__file__).parents[3]
# How long the other ranks may take to end after one has failed: they fail by themselves, in their own words.
_GRACE_S = 10.0
_LOOK_S = 0.1
Rank = subprocess.Popen[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a launch came to its end.

    Attributes:
        started: Unix time of its start.
        seconds: wall clock.
        error: why it is no good; None where every rank ended well.
    """

    started: float
    seconds: float
    error: str | None


@contextmanager
def owner(folder: Path) -> Iterator[Owner]:
    """Show ranks that somebody waits for them, as pytest does; they end when the `with` block does."""
    heartbeat = Heartbeat(folder).start()
    try:
        yield Owner(path=heartbeat.path, ttl_s=heartbeat.ttl_s)
    finally:
        heartbeat.stop()


def launch(
    work: RankTask, topology: Topology, folder: Path, *, waits: Owner, deadline_s: float, env: Mapping[str, str]
) -> Ended:
    """Run a task on the ranks of this machine, rank r on GPU r, to its end or the deadline.

    Args:
        work: what every rank runs.
        topology: one node with so many ranks.
        folder: gets the task, the step logs, and what rank 3 prints as `rank-3.log`.
        waits: who waits for it.
        deadline_s: after this long the ranks are killed, which is an error.
        env: further environment variables of the ranks.
    """
    task = Task(
        entry=work.entry,
        config=work.config,
        nodes=1,
        ranks_per_node=topology.ranks_per_node,
        device=topology.device,
        env={**work.env, **env},
        owner=waits,
    )
    write_plain(folder / "task.json", task)
    started, clock = time.time(), time.monotonic()
    ranks: list[Rank] = []
    try:
        ranks.extend(_start(folder, rank, topology.world_size) for rank in range(topology.world_size))
        error = _wait(ranks, folder, clock + deadline_s)
    finally:
        for rank in ranks:
            _kill(rank)
    return Ended(started=started, seconds=time.monotonic() - clock, error=error)


def _start(folder: Path, rank: int, ranks: int) -> Rank:
    # The same that submitit's local executor sets; the alternatives are found in the checkout.
    place = {
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_LOCALID": str(rank),
        "SUBMITIT_LOCAL_NTASKS": str(ranks),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
        "PYTHONFAULTHANDLER": "1",
    }
    with (folder / f"rank-{rank}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest_llmbench.workloads.rank.main", str(folder)],
            env={**os.environ, **place},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what a rank starts, such as compilers, ends with it
        )


def _wait(ranks: Sequence[Rank], folder: Path, deadline: float) -> str | None:
    """Wait for all ranks; returns why they are no good."""
    failed_at: float | None = None
    while any(rank.poll() is None for rank in ranks):
        now = time.monotonic()
        if now > deadline:
            return f"killed at its deadline; {laggards(folder)}"
        if failed_at is None and any(rank.poll() not in (None, 0) for rank in ranks):
            failed_at = now
        if failed_at is not None and now > failed_at + _GRACE_S:
            break
        time.sleep(_LOOK_S)
    codes = {number: code for number, rank in enumerate(ranks) if (code := rank.poll()) not in (None, 0)}
    if not codes:
        return None
    return "; ".join(f"rank {number} ended with status {code}" for number, code in codes.items())


def _kill(rank: Rank) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group is gone with its last process
        os.killpg(rank.pid, signal.SIGKILL)
    rank.wait()
