"""The event files of Megatron-LM, written with `--tensorboard-dir`, and their differences from its log.

Iterations count from 1. Losses of single iterations come every `--tensorboard-log-interval`. Times come with
`--log-timers-to-tensorboard` for each line of the log, as means over the iterations since the line before. Every tag
has a redundant twin, such as `lm loss vs samples`, that counts samples instead of iterations.
"""

import statistics as stats
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.readers import tensorboard
from pytest_llmbench.readers.tensorboard import Collected, Digits, collect, whole

_SECONDS, _LOSS, _NORM, _BATCH = "iteration-time", "lm loss", "grad-norm", "batch-size"
# Names of the same numbers in the log.
_REPORTED = {
    "throughput": "throughput_per_gpu",
    "learning-rate": "learning_rate",
    "loss-scale": "loss_scale",
    "samples vs steps": "consumed_samples",
}
_TAGS = (_SECONDS, _LOSS, _NORM, _BATCH, *_REPORTED)
# The log has 0.1 ms, or 0.0001 s, three decimals of a norm, and over several iterations the mean loss of those that
# were trained.
_DIGITS = (
    Digits(name="seconds", what="time in seconds", least=0.51e-4),
    Digits(name="loss", what="loss", of_one=False),
    Digits(name="grad_norm", what="gradient norm", least=0.51e-3),
    Digits(name="samples", what="batch"),
)


def series(source: Path | Iterable[Path]) -> StepSeries:
    """Read the event files of a folder, or the given files: a step for each time, or without times for each loss.

    Facts outside of event files, such as whether the run was completed, are None.
    """
    files = collect(source, _TAGS, first=1)
    timed = [number for number, values in files.steps.items() if _SECONDS in values]
    logged = timed or [number for number, values in files.steps.items() if _LOSS in values]
    apart = _first_is_apart(timed)
    return files.series(tuple(_steps(files, logged, apart=apart)), first_apart=apart)


def disagreements(log: StepSeries, events: StepSeries) -> Iterator[str]:
    """Yield the differences between a log and the event files of the same run."""
    logged = {step.step for step in log.steps}
    lost = [step.step for step in events.steps if step.seconds is not None and step.step not in logged]
    if lost:
        yield f"its event file has a time of iteration {lost[0]}, and its log has no such line"
    yield from tensorboard.disagreements(log.steps, events.steps, _DIGITS)


def _first_is_apart(timed: Sequence[int]) -> bool:
    """True if iteration 1 has its own time, which the next mean includes, as from core 0.16 on."""
    regular = len(timed) < 3 or timed[1] == 2 or timed[1] == timed[2] - timed[1]
    return len(timed) > 1 and timed[0] == 1 and regular


def _steps(files: Collected, logged: Sequence[int], *, apart: bool) -> Iterator[Step]:
    before = max(0, 2 * logged[0] - logged[1]) if len(logged) > 1 else 0  # files that begin in the middle of a run
    for number in logged:
        values = files.steps[number]
        yield Step(
            step=number, interval=max(1, number - before), seconds=values.get(_SECONDS),
            samples=whole(values.get(_BATCH)), grad_norm=values.get(_NORM),
            loss=_loss(files.steps, range(before + 1, number + 1)),
            reported={name: values[tag] for tag, name in _REPORTED.items() if tag in values},
        )  # fmt: skip
        before = 0 if apart and number == 1 else number


def _loss(steps: Mapping[int, Mapping[str, float]], numbers: range) -> float | None:
    losses = [steps[number][_LOSS] for number in numbers if _LOSS in steps.get(number, {})]
    return stats.fmean(losses) if losses else None
