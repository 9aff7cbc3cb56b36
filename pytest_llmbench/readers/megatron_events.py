"""The event files of Megatron-LM, written with `--tensorboard-dir`, and what they and its log say differently.

Iterations count from 1. A loss is that of its iteration and comes every `--tensorboard-log-interval`; times come with
`--log-timers-to-tensorboard`, where the log has a line, as means over the iterations since the line before. Every tag
has a twin, such as `lm loss vs samples`, that counts samples in place of iterations and says nothing new.
"""

from __future__ import annotations

import statistics as stats
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.series import Step, StepSeries
from pytest_llmbench.readers.tensorboard import Collected, collect, whole

_SECONDS, _LOSS, _NORM, _BATCH = "iteration-time", "lm loss", "grad-norm", "batch-size"
# By the words that the log has for the same.
_REPORTED = {
    "throughput": "throughput_per_gpu",
    "learning-rate": "learning_rate",
    "loss-scale": "loss_scale",
    "samples vs steps": "consumed_samples",
}
_TAGS = (_SECONDS, _LOSS, _NORM, _BATCH, *_REPORTED)
# The log has 0.1 ms, or 0.0001 s, and three decimals of a norm; a file has 32-bit floats, and a loss seven digits.
_SECONDS_SLACK, _NORM_SLACK, _SLACK = 0.51e-4, 0.51e-3, 1e-6


def series(source: Path | Iterable[Path]) -> StepSeries:
    """Read what Megatron-LM logged into a folder's event files, or into the files given: a step for each of its times.

    Without times, there is a step for each loss. What event files never say, such as whether the run was completed, is
    None.
    """
    found = collect(source, _TAGS, first=1)
    timed = [number for number, said in found.steps.items() if _SECONDS in said]
    logged = timed or [number for number, said in found.steps.items() if _LOSS in said]
    apart = _first_is_apart(timed)
    return found.series(tuple(_made(found, logged, apart=apart)), first_apart=apart)


def disagreements(log: StepSeries, events: StepSeries) -> Iterator[str]:
    """Yield where a log and the event files of the same run do not say the same of an iteration."""
    logged = {step.step: step for step in log.steps}
    for step in events.steps:
        if step.seconds is not None and step.step not in logged:
            yield f"its event file has a time of iteration {step.step}, and its log has no such line"
        elif step.step in logged:
            yield from _of_a_step(logged[step.step], step)


def _first_is_apart(timed: Sequence[int]) -> bool:
    """Whether iteration 1 has a line of its own besides those of the interval, as from core 0.16 on."""
    return len(timed) > 1 and timed[0] == 1 and (len(timed) == 2 or timed[1] == timed[2] - timed[1]) and timed[1] > 2


def _made(found: Collected, logged: Sequence[int], *, apart: bool) -> Iterator[Step]:
    before = max(0, 2 * logged[0] - logged[1]) if len(logged) > 1 else 0  # files that begin in the middle of a run
    for number in logged:
        said = found.steps[number]
        yield Step(
            step=number,
            interval=max(1, number - before),
            seconds=said.get(_SECONDS),
            samples=whole(said.get(_BATCH)),
            loss=_loss(found.steps, range(before + 1, number + 1)),
            grad_norm=said.get(_NORM),
            reported={name: said[tag] for tag, name in _REPORTED.items() if tag in said},
        )
        before = 0 if apart and number == 1 else number


def _loss(steps: Mapping[int, Mapping[str, float]], numbers: range) -> float | None:
    """The mean of what is said of these iterations, as in the log."""
    losses = [steps[number][_LOSS] for number in numbers if _LOSS in steps.get(number, {})]
    return stats.fmean(losses) if losses else None


def _of_a_step(log: Step, event: Step) -> Iterator[str]:
    pairs: list[tuple[str, float | None, float | None, float]] = [
        ("time in seconds", log.seconds, event.seconds, _SECONDS_SLACK),
        ("gradient norm", log.grad_norm, event.grad_norm, _NORM_SLACK),
        ("batch", log.samples, event.samples, 0.0),
        # Over several iterations, the log's mean leaves out those that were skipped.
        ("loss", log.loss if log.interval == 1 else None, event.loss, 0.0),
    ]
    for what, one, other, slack in pairs:
        if one is not None and other is not None and not abs(one - other) <= slack + _SLACK * abs(other):
            yield f"the {what} of iteration {log.step} is {one:g} in its log and {other:g} in its event file"
