"""Reads the JSON lines that ranks write (`workloads.rank.steplog`) into a step series.

Reading survives any content of a file. A line must be exactly one of the events of `core.wire.step_events`; other lines
are reported as unreadable and otherwise ignored.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

from pytest_llmbench.core.record.claims import Claim, ClaimName
from pytest_llmbench.core.record.series import OwnSteps, RankInfo, Step, StepSeries
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.core.wire.step_events import (
    EndEvent,
    Event,
    FailureEvent,
    MatmulEvent,
    StartEvent,
    StepEvent,
    TrainingEvent,
)
from pytest_llmbench.readers.steps.progress import event_lines, rank_logs, strange_files

# Each rank computes the norm of the whole gradient, perhaps in a different order.
_SAME_NORM = 1e-3
_OF_START = {attribute.name for attribute in fields(StartEvent)} & RankInfo.model_fields.keys() - {"rank"}
# Time stamps are sums of durations, and a double has a quarter of a microsecond in a Unix time.
_STAMP_S, _STAMP_SHARE = 1e-3, 1e-3
# Two stretches of this many steps that agree to the last digit are copies.
_COPIED = 3
# The smallest delay from the end of a step to its line may change by this much over a run, as clocks drift.
_LATE_S, _LATE_SHARE = 5e-3, 0.02
# A host may count at most this share of a step in it: the median of at least so many steps, without the first. A
# thread either runs, waits for a CPU, or sleeps, so that its phases, or its time on CPUs and its wait for one, never
# exceed the wall clock. On a loaded machine, the medians of 1,773 and of 260 logs were at most 1.025 and 1.0002; on an
# H200, of 5 logs, 1.0006 and 0.915.
_PHASES, _RUNNING, _LEAST_COUNTED = "its phases", "its thread's time on CPUs and its wait for one", 5
_MOST_OF_STEP = {_PHASES: 1.04, _RUNNING: 1.02}
# The first unreadable lines are shown; the rest is counted.
_MOST_REPORTED = 20


def read_steps(folder: Path) -> StepSeries:
    """Read the step logs of a run's ranks so far (`steps/rank-00000.jsonl`, ...); without logs, the series is empty.

    During the run, the last line of a log may be incomplete and is then reported as unreadable; a later reading finds
    it complete.
    """
    logs = [_RankLog(rank=rank, path=path) for rank, path in rank_logs(folder)]
    sums: dict[int, _Sum] = {}
    for log in logs:
        ended = 0.0
        for step in log.steps():
            ended += step.seconds
            sums.setdefault(step.step, _Sum(step.step)).add(step, ended)
    ranks = tuple(info for log in logs if (info := log.info()) is not None)
    strange = [f"{name}:1: a log in addition to the one of each rank" for name in strange_files(folder)]
    in_order = [sums[number] for number in sorted(sums)]
    return StepSeries(
        ranks=ranks,
        steps=tuple(total.step(before) for before, total in zip([None, *in_order], in_order, strict=False)),
        unlike_norms=next((difference for total in in_order if (difference := total.unlike_norms())), None),
        unreadable=tuple(line for log in logs for line in log.unreadable_lines()),
        failure=next((words for log in logs if (words := log.failed_at_start())), None),
        restarted=strange[0] if strange else None,
        claims=tuple(claim for info in ranks for claim in _claims(info)),
    )


def _claims(info: RankInfo) -> Iterator[Claim]:
    """Yield the counts of a rank that are the same on all ranks."""
    names: tuple[ClaimName, ...] = (
        "world_size", "tensor", "pipeline", "precision", "sequence_length", "micro_batch_size", "dropout",
        "activation_checkpointing",
    )  # fmt: skip
    for name in names if info.training is not None else ():
        value = getattr(info.training, name)
        if value is not None:
            yield Claim(name=name, value=value, where=f"rank {info.rank}")


@dataclass(kw_only=True, slots=True)
class _RankLog:
    """Reads one rank's file once, from front to back, and keeps sums of its steps alone."""

    rank: int
    path: Path
    _line: int = 0
    _last_step: int = 0
    _own_steps: OwnSteps | None = None
    _start: StartEvent | None = None
    _rates: list[float] = field(default_factory=list)
    _training: TrainingEvent | None = None
    _end: EndEvent | None = None
    _failure: FailureEvent | None = None
    _unreadable: list[str] = field(default_factory=list)
    _unreported: int = 0

    def steps(self) -> Iterator[StepEvent]:
        """Yield the readable steps, in order."""
        summary = _OwnSums()
        try:
            for number, event in event_lines(self.path):
                self._line = number
                if isinstance(event, str):
                    self._refuse(event)
                elif self._accept(event) and isinstance(event, StepEvent):
                    summary.add(event)
                    yield event
        except OSError as error:
            self._refuse(f"cannot be read on: {error.strerror}")
        self._own_steps = summary.close()

    def info(self) -> RankInfo | None:
        """Return the facts of the rank from its start and end; None before its start."""
        if self._start is None:
            return None
        return RankInfo(
            **{name: getattr(self._start, name) for name in _OF_START},
            rank=self.rank,
            matmul_flops_per_s=max(self._rates, default=None),
            matmul_rates=tuple(self._rates),
            ended=self._end is not None,
            failure=self._failure.error if self._failure else None,
            failed_at=self._failure.time if self._failure else None,
            started=self._start.time,
            finished=self._end.time if self._end else None,
            end_steps=self._end.steps if self._end else None,
            asked_to_end=self._end is not None and self._end.asked,
            steps=self._own_steps,
            training=self._training,
        )

    def failed_at_start(self) -> str | None:
        """Return the failure of a rank before its start event; None otherwise."""
        if self._failure is None or self._start is not None:
            return None
        return f"rank {self.rank} failed before it could introduce itself: {self._failure.error}"

    def unreadable_lines(self) -> Iterator[str]:
        """Yield the unreadable lines with their reasons."""
        yield from self._unreadable
        if self._unreported:
            yield f"{self.path.name}:{self._line}: {self._unreported} more unreadable lines up to here"
        if self._failure is not None and self._start is None:
            yield f"{self.path.name}:1: no start of this rank, which failed: {self._failure.error}"

    def _accept(self, event: Event) -> bool:
        """Record an event; returns False if it contradicts earlier ones."""
        contradiction = self._contradicts(event)
        if contradiction is not None:
            return self._refuse(contradiction)
        match event:
            case StepEvent(step=step):
                self._last_step = step
            case StartEvent():
                self._start = event
            case MatmulEvent(flops_per_s=rate):
                self._rates.append(rate)
            case TrainingEvent():
                self._training = event
            case EndEvent():
                self._end = event
            case FailureEvent():
                self._failure = event
        return True

    def _contradicts(self, event: Event) -> str | None:
        """Return the contradiction between an event and the earlier ones; None without one."""
        match event:
            case StepEvent() | EndEvent() if self._end is not None:
                return f"{event.event} after the end of this rank"
            case StepEvent(step=step) if step <= self._last_step:
                return f"step {step} after step {self._last_step}"
            case StartEvent(rank=rank) if rank != self.rank:
                return f"start of rank {rank}"
            case StartEvent() if self._start is not None:
                return "second start"
        return None

    def _refuse(self, reason: str) -> bool:
        if len(self._unreadable) < _MOST_REPORTED:
            self._unreadable.append(f"{self.path.name}:{self._line}: {reason}")
        else:
            self._unreported += 1
        return False


class _OwnSums:
    """Accumulates the steps of one rank in their order."""

    def __init__(self) -> None:
        self._numbers = array("q")
        # Of each step: its duration, the time of its end and that of its line, its loss and the norm of its gradient.
        self._seconds, self._times, self._logged, self._losses, self._norms = (array("d") for _ in range(5))
        self._counted = {_PHASES: array("d"), _RUNNING: array("d")}
        self._peak = 0
        self._less_memory: str | None = None

    def add(self, step: StepEvent) -> None:
        """Add the next step."""
        self._numbers.append(step.step)
        self._seconds.append(step.seconds)
        self._times.append(step.time)
        self._logged.append(step.logged)
        self._losses.append(float(step.loss))
        self._norms.append(float(step.grad_norm))
        if step.spent is not None and len(self._seconds) > 1:  # the first one counts the start of the process as well
            phases = (step.spent.phases or {}).values()
            for what, parts in ((_PHASES, phases), (_RUNNING, (step.spent.ran_s, step.spent.delayed_s))):
                if known := [part for part in parts if part is not None]:
                    self._counted[what].append(sum(known) / step.seconds)
        peak = step.peak_memory_bytes
        if peak is not None:
            if peak < self._peak and self._less_memory is None:  # the highest memory since the start cannot fall
                self._less_memory = f"up to step {step.step} it had at most {peak:,} bytes, and before {self._peak:,}"
            self._peak = max(self._peak, peak)

    def close(self) -> OwnSteps | None:
        """Return the sums; None without steps."""
        if not self._numbers:
            return None
        return OwnSteps(
            count=len(self._numbers),
            began=self._times[0] - self._seconds[0],
            ended=self._times[-1],
            seconds=math.fsum(self._seconds),
            unlike_times=self._unlike_times(),
            unlike_clock=self._unlike_clock(),
            unlike_host=self._unlike_host(),
            durations=_digest(self._seconds),
            losses=_digest(self._losses),
            quarters=_quarters(self._losses),
            still=max(len(list(row)) for _, row in groupby(self._losses)),
            flat=self._norms.count(0.0),
            peak_memory_bytes=self._peak or None,
            same_norm=max((len(list(row)) for norm, row in groupby(self._norms) if norm), default=0),
            copied=self._copied(),
            less_memory=self._less_memory,
        )

    def _copied(self) -> str | None:
        """Find a stretch of steps that repeats the durations and losses of another to the last digit."""
        places = repeated(list(zip(self._seconds, self._losses, strict=True)), _COPIED, 2)
        if places is None:
            return None
        first, again = (f"{self._numbers[at]} to {self._numbers[at] + _COPIED - 1}" for at in places)
        return f"steps {again} have the very durations and losses of steps {first}"

    def _unlike_times(self) -> str | None:
        """Compare durations with time stamps, step by step and in sum."""
        since, seconds = self._times[0], 0.0
        for number, before, time, duration in zip(
            self._numbers[1:], self._times, self._times[1:], self._seconds[1:], strict=False
        ):
            seconds += duration
            for passed, took, what in (
                (time - before, duration, f"step {number} took {duration:.4g} s"),
                (time - since, seconds, f"the steps up to {number} took {seconds:.4g} s"),
            ):
                if not abs(passed - took) <= _STAMP_S + _STAMP_SHARE * took:
                    return f"{what} and ended {passed:.4g} s after the step before by the time stamps"
        return None

    def _unlike_host(self) -> str | None:
        """Compare the durations with what the host counted in the steps, by clocks of its own."""
        for what, shares in self._counted.items():
            if len(shares) >= _LEAST_COUNTED and (share := median(shares)) > _MOST_OF_STEP[what]:
                return f"{what} add up to {100 * share:.4g} % of the duration of a typical step"
        return None

    def _unlike_clock(self) -> str | None:
        """Compare the time stamps with the clock at which the lines were written."""
        if len(self._times) < 2:
            return None
        late = [logged - ended for logged, ended in zip(self._logged, self._times, strict=True)]
        half = len(late) // 2
        drift = min(late[half:]) - min(late[:half])
        if abs(drift) <= _LATE_S + median(self._seconds) + _LATE_SHARE * (self._times[-1] - self._times[0]):
            return None
        stamped, logged = self._times[-1] - self._times[0], self._logged[-1] - self._logged[0]
        return (
            f"steps {self._numbers[0]} to {self._numbers[-1]} ended within {stamped:.4g} s by their time stamps and "
            f"were written down within {logged:.4g} s by the host's clock"
        )


def _digest(values: array[float]) -> str:
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


def _quarters(losses: Sequence[float]) -> tuple[float, ...]:
    number = min(4, len(losses))
    edges = [len(losses) * part // number for part in range(number + 1)]
    # math.fsum raises where the sum is infinite.
    return tuple(sum(losses[start:end]) / (end - start) for start, end in pairwise(edges))


@dataclass(slots=True)
class _Sum:
    """One step over the ranks read so far."""

    number: int
    seconds: float = 0.0  # duration on the slowest rank
    ended: float = 0.0  # end on the last rank, in seconds since the common start of all ranks
    tokens: int = 0
    samples: int = 0
    losses: float = 0.0
    grad_norm: float = -math.inf
    grad_norm_low: float = math.inf
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
        # max() would drop or keep a NaN, depending on the order of ranks.
        self.grad_norm = norm if math.isnan(norm) else max(self.grad_norm, norm)
        self.grad_norm_low = min(self.grad_norm_low, norm)
        if step.peak_memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, step.peak_memory_bytes)
        self.ranks += 1

    def step(self, before: _Sum | None) -> Step:
        """Return the step of the whole run.

        It lasts from the last rank's end of the step before to the last rank's end of this one. The duration on the
        slowest rank would count a delay twice: on the late rank, and on a rank that waits for it in the next step. That
        duration is used if the number of ranks differs between the two steps.
        """
        seconds = self.seconds
        if before is not None and (before.number, before.ranks) == (self.number - 1, self.ranks) and self.ranks > 1:
            between = self.ended - before.ended
            seconds = between if between > 0.0 else seconds
        return Step(
            step=self.number, seconds=seconds, tokens=self.tokens, samples=self.samples, loss=self.losses / self.ranks,
            grad_norm=self.grad_norm, peak_memory_bytes=self.peak_memory_bytes, ranks=self.ranks,
        )  # fmt: skip

    def unlike_norms(self) -> str | None:
        """Return a difference of the ranks' gradient norms; the sanity gate reports NaN and infinity."""
        low, high = self.grad_norm_low, self.grad_norm
        if not high - low > _SAME_NORM * abs(high):
            return None
        return f"step {self.number} has a gradient norm of {low:.6g} on one rank and {high:.6g} on another"
