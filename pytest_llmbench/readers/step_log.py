"""Reads the JSON lines that ranks write (`workloads.steplog`) into a step series.

Nothing in a file makes reading fail, and nothing doubtful becomes a number: a line that is not exactly one
of the events of `core.step_events` is reported as unreadable and otherwise ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.core.series import RankInfo, Step, StepSeries
from pytest_llmbench.core.step_events import (
    EndEvent,
    Event,
    FailureEvent,
    MatmulEvent,
    StartEvent,
    StepEvent,
)
from pytest_llmbench.readers.event_lines import event_lines, rank_logs

# A file of garbage is told by its first lines; the rest is counted.
_MOST_REPORTED = 20


def read_steps(folder: Path) -> StepSeries:
    """Read what the ranks of a run have logged so far.

    While the run goes on, a last line may be there in part and is reported as unreadable; the next reading
    finds it whole.

    Args:
        folder: the run's folder, with `steps/rank-00000.jsonl` and so on; without any, the series is empty.
    """
    logs = [_RankLog(rank=rank, path=path) for rank, path in rank_logs(folder)]
    sums: dict[int, _Sum] = {}
    for log in logs:
        ended = 0.0
        for step in log.steps():
            ended += step.seconds
            sums.setdefault(step.step, _Sum(step.step)).add(step, ended)
    return StepSeries(
        ranks=tuple(info for log in logs if (info := log.info()) is not None),
        steps=tuple(_steps([sums[number] for number in sorted(sums)])),
        unreadable=tuple(line for log in logs for line in log.reported()),
    )


def _steps(sums: Sequence[_Sum]) -> Iterator[Step]:
    for before, each in zip([None, *sums], sums, strict=False):
        yield each.step(before)


@dataclass(kw_only=True, slots=True)
class _RankLog:
    """One rank's file, read once from front to back; of its steps only the last number is kept."""

    rank: int
    path: Path
    _line: int = 0
    _last_step: int = 0
    _start: StartEvent | None = None
    _matmul: float | None = None
    _ended: bool = False
    _failure: FailureEvent | None = None
    _unreadable: list[str] = field(default_factory=list)
    _unreported: int = 0

    def steps(self) -> Iterator[StepEvent]:
        """Yield the readable steps, in order."""
        try:
            for line in event_lines(self.path):
                self._line = line.number
                if line.event is None:
                    self._refuse(line.why)
                elif self._accept(line.event) and isinstance(line.event, StepEvent):
                    yield line.event
        except OSError as error:
            self._refuse(f"cannot be read on: {error.strerror}")

    def info(self) -> RankInfo | None:
        """Return how the rank introduced itself and how it ended."""
        if self._start is None:
            return None
        return RankInfo(
            rank=self.rank,
            host=self._start.host,
            pid=self._start.pid,
            local_rank=self._start.local_rank,
            device=self._start.device,
            versions=self._start.versions,
            matmul_flops_per_s=self._matmul,
            ended=self._ended,
            failure=self._failure.error if self._failure else None,
            failed_at=self._failure.time if self._failure else None,
        )

    def reported(self) -> Iterator[str]:
        """Yield what could not be read."""
        yield from self._unreadable
        if self._unreported:
            yield f"{self.path.name}:{self._line}: {self._unreported} more unreadable lines up to here"
        if self._failure is not None and self._start is None:
            yield f"{self.path.name}:1: no start of this rank, which failed: {self._failure.error}"

    def _accept(self, event: Event) -> bool:
        """Take note of an event; False when it contradicts those before."""
        match event:
            case StepEvent(step=step) if step <= self._last_step:
                return self._refuse(f"step {step} after step {self._last_step}")
            case StepEvent(step=step):
                self._last_step = step
            case StartEvent(rank=rank) if rank != self.rank:
                return self._refuse(f"start of rank {rank}")
            case StartEvent() if self._start is not None:
                return self._refuse("second start")
            case StartEvent():
                self._start = event
            case MatmulEvent(flops_per_s=rate):
                self._matmul = rate
            case EndEvent():
                self._ended = True
            case FailureEvent():
                self._failure = event
        return True

    def _refuse(self, why: str) -> bool:
        if len(self._unreadable) < _MOST_REPORTED:
            self._unreadable.append(f"{self.path.name}:{self._line}: {why}")
        else:
            self._unreported += 1
        return False


@dataclass(slots=True)
class _Sum:
    """One step over the ranks read so far.

    Attributes:
        seconds: of the slowest rank.
        ended: when the last rank ended it, in seconds since the start that all ranks have together.
    """

    number: int
    seconds: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    samples: int = 0
    losses: float = 0.0
    grad_norm: float = -math.inf
    peak_memory_bytes: int | None = None
    ranks: int = 0

    def add(self, step: StepEvent, ended: float) -> None:
        """Add one rank's part."""
        self.seconds = max(self.seconds, step.seconds)
        self.ended = max(self.ended, ended)
        self.tokens += step.tokens
        self.samples += step.samples
        self.losses += float(step.loss)
        norm = float(step.grad_norm)
        # max() would drop a NaN or keep it depending on the order of ranks.
        self.grad_norm = norm if math.isnan(norm) else max(self.grad_norm, norm)
        if step.peak_memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, step.peak_memory_bytes)
        self.ranks += 1

    def step(self, before: _Sum | None) -> Step:
        """Return the step of the whole run.

        It lasts from the last rank's end of the step before to the last rank's end of this one: the sum of the slowest
        ranks' seconds would count twice what one rank is late in one step and another waits for in the next. Where not
        the same ranks logged both, it is as long as for the slowest of them.
        """
        seconds = self.seconds
        if before is not None and (before.number, before.ranks) == (self.number - 1, self.ranks) and self.ranks > 1:
            between = self.ended - before.ended
            seconds = between if between > 0.0 else seconds
        return Step(
            step=self.number,
            seconds=seconds,
            tokens=self.tokens,
            samples=self.samples,
            loss=self.losses / self.ranks,
            grad_norm=self.grad_norm,
            peak_memory_bytes=self.peak_memory_bytes,
            ranks=self.ranks,
        )
