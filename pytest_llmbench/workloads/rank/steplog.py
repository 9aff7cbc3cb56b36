"""Step log of a rank: JSON lines, and one small file with its current phase.

`FOLDER/steps/rank-00000.jsonl` holds one event of `core.wire.step_events` per line: `start` first, then `matmul`, one
`step` per optimizer step, `training`, and `end` or `failure` last, with samples of the rank's GPU in between. It is
strict JSON, with NaN and infinities as the texts `nan`, `inf` and `-inf`.

`FOLDER/phase/rank-00000` holds `<step> <phase> <micro batch>`. If all ranks are stuck in one step, the sick rank is
still in `forward`, while the others wait for it in `sync`.

Both files reach other machines without an fsync: at once on a coherent file system such as Lustre; on NFS when the
kernel writes back, within about half a minute, and at the end of the process at the latest.
"""

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Self

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire import layout, step_events
from pytest_llmbench.core.wire.foreign import redacted
from pytest_llmbench.workloads.node.secret_filter import secret_values
from pytest_llmbench.workloads.node.shared_files import wait_for
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.simulation import Simulation
from pytest_llmbench.workloads.rank.spending import Spending

_PHASE_BYTES = 64
_LONGEST_ERROR = 2000
_LOOK_S = 0.2


class StepLog:
    """The log of one rank. Each event is one `write`, which is atomic, so threads can share the log.

    Attributes:
        may_end_early: whether the session may end the run before its last step.
        clock: the clock of all its time stamps.

    Raises RunError `ran_before` if the folder holds a log of this rank already.
    """

    def __init__(self, context: RankContext) -> None:
        self.may_end_early = context.may_end_early
        self.clock = UnixClock()
        self._context = context
        self._steps, self._asked = 0, False
        self._enough = _watch_enough(context.folder) if context.may_end_early and context.rank == 0 else None
        self._spending = Spending()
        fault = context.simulate
        self._simulation = Simulation(fault, context) if fault is not None and fault.step is not None else None
        log = context.folder / layout.STEPS / layout.step_log(context.rank)
        phase = layout.phase(context.folder, context.rank)
        for path in (log, phase):
            make_folder(path.parent)
        self._log = _create(log)
        self._phase = os.open(phase, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.phase(0, "start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._log)
        os.close(self._phase)
        self._spending.close()

    def start(self, device: str, versions: Mapping[str, str], gpu: str | None = None) -> None:
        """Write the start event: `device` as the driver names it, `versions` by software, `gpu` as its UUID."""
        own = self._context
        event = step_events.StartEvent(
            schema=1, rank=own.rank, world_size=own.world_size, local_rank=own.local_rank, host=socket.gethostname(),
            pid=os.getpid(), device=device, versions=dict(versions), node=os.environ.get("SLURMD_NODENAME"),
            pid_namespace=Path("/proc/self/ns/pid").stat().st_ino, gpu=gpu, token=own.token, time=self.clock.now(),
        )  # fmt: skip
        self._write(event)

    def matmul(self, flops_per_s: float) -> None:
        """Write a matrix-product rate that this rank measured, FLOP/s."""
        self._write(step_events.MatmulEvent(flops_per_s=flops_per_s))

    def training(self, event: step_events.TrainingEvent) -> None:
        """Write what this rank counted of its training, after its last step."""
        self._write(event)

    def telemetry(self, event: step_events.TelemetryEvent | step_events.GpuEvent) -> None:
        """Write an event of this rank's GPU; called by any thread before the log is closed."""
        self._write(event)

    def step(
        self,
        *,
        seconds: float,
        tokens: int,
        samples: int,
        loss: float,
        grad_norm: float,
        peak_memory_bytes: int | None,
        ended: float | None = None,
    ) -> None:
        """Write the next optimizer step, after its end; the first is step 1.

        `seconds` are since the end of the step before, and `ended` is the Unix time of its end, by default now. Tokens
        and samples are this rank's, counted in the tensors that its model was fed; the loss is the mean over them, nat
        per token, and `grad_norm` the L2 norm of the whole gradient before clipping.
        """
        now = self.clock.now()
        self._steps += 1
        event = step_events.StepEvent(
            step=self._steps, seconds=seconds, tokens=tokens, samples=samples, loss=step_events.json_number(loss),
            grad_norm=step_events.json_number(grad_norm), peak_memory_bytes=peak_memory_bytes,
            time=now if ended is None else ended, logged=now, spent=self._spending.step_times(self._steps),
        )  # fmt: skip
        self._write_line(event.line() if self._simulation is None else self._simulation.logged(event))

    @property
    def enough(self) -> bool:
        """True if the session requests the end; rank 0 alone reads this, and broadcasts it within a step.

        All ranks must end after the same step, as they would otherwise wait for each other for ever.
        """
        return self._enough is not None and self._enough.is_set()

    def end_early(self) -> None:
        """Mark the next end as requested by the session."""
        self._asked = True

    def end(self) -> None:
        """Write that this rank finished its last step."""
        self.phase(self._steps, "done")
        self._write(step_events.EndEvent(steps=self._steps, time=self.clock.now(), asked=self._asked))

    def failure(self, error: str) -> None:
        """Write the error that ended this rank: one line, without secrets."""
        folded = " ".join(redacted(harmless(error), secret_values(os.environ, ())).split())[:_LONGEST_ERROR]
        self._write(step_events.FailureEvent(error=folded, time=self.clock.now()))

    def phase(self, step: int, name: step_events.Phase, micro_batch: int = 0) -> None:
        """Write the current phase of the host: 1-based step (0 before the first) and micro batch (0 outside of one).

        A GPU works asynchronously, so a rank with a hanging kernel shows the phase in which its host next waits for the
        GPU, `device`. Step events have the time of each phase.
        """
        self._spending.enter(step, name)
        os.pwrite(self._phase, f"{step} {name} {micro_batch}".ljust(_PHASE_BYTES - 1).encode("ascii") + b"\n", 0)
        if self._simulation is not None:
            self._simulation.enter(step, name)

    def _write(self, event: step_events.Event) -> None:
        self._write_line(event.line())

    def _write_line(self, line: bytes) -> None:
        if os.write(self._log, line) != len(line):
            raise OSError(f"the log of rank {self._context.rank} cannot be written: is the disk full?")


def _create(log: Path) -> int:
    try:
        return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise RunError(
            "ran_before",  #: error ran_before: the run's folder holds a log of this rank already
            f"{log} exists: this run started before, or was requeued; each run needs its own folder",
        ) from error


def _watch_enough(folder: Path) -> Event:
    """Watch for the file with which a session requests the end, from a daemon thread that sets the event."""
    asked = Event()

    def watch() -> None:
        wait_for(folder / layout.ENOUGH, math.inf, _LOOK_S, _LOOK_S)
        asked.set()

    Thread(target=watch, name="llmbench-enough", daemon=True).start()
    return asked
