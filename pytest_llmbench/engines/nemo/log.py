"""NeMo's log: the progress bar of NeMo 1, the lines of NeMo 2 (24.07 and later), and TensorBoard's event files.

All number steps from 0. NeMo 2 gives means over the steps since the line before, even of `consumed_samples`. Times are
in the log only if the bar or the line was configured to show them; the event file always has them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.nemo import gnu_time
from pytest_llmbench.readers import megatron_claims, patterns
from pytest_llmbench.readers.items import (
    Completed,
    Failed,
    Item,
    Needles,
    Printed,
    Said,
    StepLine,
    Unreadable,
    WorldSize,
)
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import as_number, number
from pytest_llmbench.readers.printed import in_yaml
from pytest_llmbench.readers.tensorboard import Collected, collect, whole

# `Epoch 0: 100%|███| 40/40 [00:31<00:00,  1.27it/s, loss=10.9, v_num=, ..., global_step=39.00]`; another bar or a
# warning may follow in the same line.
_BAR = re.compile(r"Epoch \d{1,9}:[^\[\]]{0,999}\[([^\[\]]*)(\]?)", re.ASCII)
_LINE = re.compile(r"Training epoch \d+, iteration \d+", re.ASCII)
_COUNT = re.compile(r"(\d{1,12})(?:\.0*)?", re.ASCII)
_WORLD_SIZE = re.compile(
    r"All distributed processes registered\. Starting with (\d{1,9}) processes"
    r"|[Ii]nitializing distributed: GLOBAL_RANK: \d+, MEMBER: \d+/(\d{1,9})",
    re.ASCII,
)
_COMPLETED = re.compile(r"`Trainer\.fit` stopped: `max_(?:steps|epochs)=\d+` reached\.", re.ASCII)
_NEEDED = ("reduced_train_loss", "grad_norm")
TIMINGS = ("train_step_timing", "train_step_timing in s")  # NeMo up to 1.23, and after


# Every line with items contains one of these, apart from the words of failures.
NEEDLES = (
    b"Training epoch", b"global_step=", b"All distributed processes", b"nitializing distributed", b"`Trainer.fit`",
)  # fmt: skip


def parse(text: str) -> Iterable[Item]:
    """Read one line. Raises Unreadable for a damaged step."""
    if _LINE.match(text):
        yield _step(dict(_pairs(text.split(" | ")[1:], ":")))
        return
    for bar in _BAR.finditer(text):
        if "global_step=" in bar[1]:
            if not bar[2]:
                raise Unreadable("the bar is cut off")
            # It shows the last step alone, and is drawn again and again.
            yield replace(_step(dict(_pairs(bar[1].split(", "), "="))), interval=1, revises=True)
    if match := _COMPLETED.search(text):
        yield Completed(match[0])
    if match := _WORLD_SIZE.search(text):
        yield WorldSize(int(match[1] or match[2]))
    if message := patterns.failure(text):
        yield Failed(message)


def _pairs(pieces: list[str], sign: str) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        name, separator, value = piece.partition(sign)
        if separator:
            yield name.strip(), value.strip()


def _step(texts: dict[str, str]) -> StepLine:
    """Build a step of its values; other texts, such as an empty `v_num`, are left out."""
    global_step = _COUNT.fullmatch(texts.pop("global_step", ""))
    if global_step is None:  # 1.23e+05 is a rounded step of the bar
        raise Unreadable("it has no global_step that is a whole number")
    batch = _COUNT.fullmatch(texts.get("global_batch_size", ""))
    values = {name: number(name, texts.pop(name)) for name in (*_NEEDED, *TIMINGS) if name in texts}
    timings = [values[name] for name in TIMINGS if name in values]
    return StepLine(
        step=int(global_step[1]) + 1, seconds=timings[0] if timings else None, samples=int(batch[1]) if batch else None,
        loss=values.get("reduced_train_loss"), grad_norm=values.get("grad_norm"),
        reported={name: figure for name, value in texts.items() if (figure := as_number(value)) is not None},
    )  # fmt: skip


_TAGS = (*TIMINGS, "reduced_train_loss", "grad_norm", "global_batch_size", "global_step", "consumed_samples", "lr")


def series(source: Path | Iterable[Path]) -> StepSeries:
    """Read the steps that NeMo logged into a folder's event files, or into the files given.

    Several files are one run that was resumed: each continues where the one before it ended, or the run is `restarted`.
    Facts outside of event files, such as whether the run was completed, are None.
    """
    files = collect(source, _TAGS, alike=TIMINGS, first=0)
    return files.series(tuple(_steps(files)))


def _steps(files: Collected) -> Iterator[Step]:
    first, second = [*files.steps, 0, 0][:2]
    before = max(0, 2 * first - second) if second else 0  # files that begin in the middle of a run
    for step, values in files.steps.items():
        if step in files.doubtful:
            continue
        timings = [values.pop(tag) for tag in TIMINGS if tag in values]
        yield Step(
            step=step, interval=step - before, at=files.times.get(step), seconds=timings[0] if timings else None,
            samples=whole(values.get("global_batch_size")), loss=values.pop("reduced_train_loss", None),
            grad_norm=values.pop("grad_norm", None), reported=values,
        )  # fmt: skip
        before = step


_ON_DEVICE = re.compile(
    r"Pipeline model parallel rank: (\d{1,6}), .{0,80}Number of model parameters on device: (\d\.\d{1,9}e\+\d\d)",
    re.ASCII,
)
# `1.2 M     Non-trainable params`, of Lightning's summary of the model.
_FROZEN = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)(?: ([KMBT]))?\s+Non-trainable params\s*", re.ASCII)
# Lightning's words for a run that goes on from a checkpoint.
_RESTORED = re.compile(r"\bRestor(?:ing states from the|ed all states from the) checkpoint", re.ASCII)
_THOUSANDS = {None: 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


# Every line with claims contains one of these.
CLAIM_NEEDLES = (
    b":",  # of every line of YAML but those of a list
    b"- ",
    b"Number of model parameters on device",
    b"Non-trainable params",
    b"Restor",
    *megatron_claims.NEEDLES,
)


def read_claims(text: str) -> Iterator[Said | Printed]:
    """Yield the configuration and model size that NeMo 1 prints, or what Megatron-Core prints in NeMo 2."""
    if settings := [*in_yaml(text)]:
        yield from settings
    elif _RESTORED.search(text):
        yield Said("initial_weights", "loaded")
    elif match := _ON_DEVICE.search(text):
        yield Said("parameters_of_rank", float(match[2]), stage=int(match[1]))
    elif match := _FROZEN.fullmatch(text):
        yield Said("frozen_parameters", float(match[1]) * _THOUSANDS[match[2]])
    else:
        yield from megatron_claims.parse_claims(text)


READER = LogReader(
    name="nemo",
    dialect=lambda: lambda text: chain(parse(text), gnu_time.parse(text)),
    claims=read_claims,
    needles=Needles((*NEEDLES, *gnu_time.NEEDLES), CLAIM_NEEDLES),
)
