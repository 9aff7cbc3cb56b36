"""Sums over the steps of one rank, which the reader of its log adds one by one."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import median

from pytest_llmbench.core.record.series import OwnSteps
from pytest_llmbench.core.repeats import repeated
from pytest_llmbench.core.wire.step_events import StepEvent

# Time stamps are sums of durations, and a double has a quarter of a microsecond in a Unix time.
_STAMP_S, _STAMP_SHARE = 1e-3, 1e-3
# Two stretches of this many steps that agree to the last digit are copies.
_COPIED = 3
# The smallest delay from the end of a step to its line may change by this much over a run, as clocks drift.
_LATE_S, _LATE_SHARE = 5e-3, 0.02


class Summary:
    """Accumulates the steps of one rank in their order."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._seconds, self._times, self._losses = array("d"), array("d"), array("d")
        self._logged: array[float] = array("d")
        self._norms = array("d")
        self._peak = 0
        self._less_memory: str | None = None

    def add(self, step: StepEvent) -> None:
        """Add the next step."""
        self._numbers.append(step.step)
        self._seconds.append(step.seconds)
        self._times.append(step.time)
        self._losses.append(float(step.loss))
        self._norms.append(float(step.grad_norm))
        self._look_at_memory(step)
        self._logged.append(step.logged)

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

    def _look_at_memory(self, step: StepEvent) -> None:
        """Keep the first step whose highest memory since the start is below an earlier one."""
        peak = step.peak_memory_bytes
        if peak is None:
            return
        if peak < self._peak and self._less_memory is None:
            self._less_memory = f"up to step {step.step} it had at most {peak:,} bytes, and before {self._peak:,}"
        self._peak = max(self._peak, peak)

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
    return tuple(_mean(losses[start:end]) for start, end in pairwise(edges))


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)  # math.fsum raises where the sum is infinite
