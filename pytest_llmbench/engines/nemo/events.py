"""The steps that NeMo logs into TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.nemo.log import TIMINGS
from pytest_llmbench.readers.events.tensorboard import Collected, collect, whole

_TAGS = (*TIMINGS, "reduced_train_loss", "grad_norm", "global_batch_size", "global_step", "consumed_samples", "lr")


def series(source: Path | Iterable[Path]) -> StepSeries:
    """Read the steps that NeMo logged into a folder's event files, or into the files given.

    Several files are one run that was resumed: each goes on where the one before it ended, or the run is `restarted`.
    Facts that event files never contain, such as whether the run was completed, are None.
    """
    found = collect(source, _TAGS, alike=TIMINGS, first=0)
    return found.series(tuple(_made(found)))


def _made(found: Collected) -> Iterator[Step]:
    first, second = [*found.steps, 0, 0][:2]
    before = max(0, 2 * first - second) if second else 0  # files that begin in the middle of a run
    for number, said in found.steps.items():
        if number in found.doubtful:
            continue
        timings = [said.pop(tag) for tag in TIMINGS if tag in said]
        yield Step(
            step=number,
            interval=number - before,
            at=found.times.get(number),
            seconds=timings[0] if timings else None,
            samples=whole(said.get("global_batch_size")),
            loss=said.pop("reduced_train_loss", None),
            grad_norm=said.pop("grad_norm", None),
            reported=said,
        )
        before = number
