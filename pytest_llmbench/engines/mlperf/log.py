"""The log of an MLPerf Training submission: lines `:::MLLOG {json}`, as `mlperf_logging` prints them.

A run trains in blocks, from `block_start` to `block_stop`, and evaluates after each. A step line is one with a training
loss; its `samples_count`, or `step` in older logs, is the number of samples so far. The duration of its steps is the
time in blocks since the line before, by `time_ms`; its own `train_step_time` is that of its last step alone. In a log
without such lines, each block is a step line, with the evaluated loss. A block ends with the mean time or rate of its
steps, which is the second clock. `eval_start` and `run_stop` have the number of samples so far in all logs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers import items, patterns
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import as_number, duration, number

_LINE = re.compile(r":::MLLOG (\{.*\})\s*", re.ASCII)
# `:::DLPAL image.sqsh 9244 64 worker-[0-63] 'unknown' DGXH200_64x8x144xtp4pp8cp2`: how NVIDIA's script was configured.
_CONFIG = re.compile(
    r":::DLPAL .*_(\d{1,5})x(\d{1,3})x\d{1,5}xtp(\d{1,4})pp(\d{1,4})cp(\d{1,4})(?:_(\w+))?\s*", re.ASCII
)
_LOSSES, _MEANS = ("train_loss", "reduced_train_loss"), {"train_step_time", "throughput"}
# In 6,003 blocks of 471 public logs, the steps' own mean asks for 0.13 % or 0.05 s more than passed by `time_ms`.
_SHARE, _EARLY_S = 0.003, 0.1
_CLAIMS: Mapping[str, ClaimName] = {
    "global_batch_size": "global_batch_size", "max_sequence_length": "sequence_length",
    "gradient_accumulation_steps": "micro_batches",
}  # fmt: skip


@dataclass(slots=True)
class Dialect:
    """State of a log after some of its lines; `parse` reads the next one. Counts are steps, times are milliseconds."""

    _text: str = ""
    _batch: int = 0
    _begun: int | None = None
    _now: int = 0
    _block: int | None = None  # begin of the open block
    _length: int | None = None  # of a block that waits for its evaluation
    _mean: float | None = None  # seconds of a step of that block, by its own line
    _trained: int = 0  # time in all closed blocks
    _done: int = 0  # up to the last evaluation
    _line: tuple[int, int] = (0, 0)  # up to the last step line, and time in blocks
    _interval: int | None = None  # of the last line with a loss
    _accuracy: float | None = None  # a loss, by the last evaluation
    _whole: tuple[int, float] | None = None  # steps of a block without lines, and seconds of each, until its evaluation

    def parse(self, text: str) -> Iterable[items.Item]:
        """Read one line; see `items.Parse`.

        The totals are `eval_accuracy` (a loss, by the last evaluation), `run_s` (seconds from start to stop) and
        `blocks_without_a_mean` (how many lack the second clock).
        """
        mark = text.find(":::MLLOG")
        if mark < 0:
            return [items.Failed(text)] if patterns.failure(text) else ()
        if text[mark:] == self._text or '"validation_' in text:  # a copy, or one of very many
            return ()
        match = _LINE.fullmatch(text, mark)
        try:
            event = read_json(match[1], once=True) if match else None
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(about := event.get("metadata"), dict):
            raise items.Unreadable("no JSON object, or cut off")
        self._text = text[mark:]
        return list(self._event(event.get("key"), event.get("value"), about, event.get("time_ms")))

    def _event(self, key: Any, value: Any, about: Mapping[str, Any], time_ms: Any) -> Iterator[items.Item]:
        stats = value if isinstance(value, dict) else {}
        losses = [value] if key == "train_loss" else [stats[name] for name in _LOSSES if name in stats]
        if key == "global_batch_size":
            self._batch = self._batch or _whole("global_batch_size", value)
        elif key == "run_start":
            self._begun = self._now = _whole("time_ms", time_ms)
            yield items.Begun(f"run_start at {self._now} ms")
        elif losses or _MEANS & stats.keys() or key in _EVENTS:
            now = _whole("time_ms", time_ms)
            if now < self._now:
                raise items.Unreadable(f"its time_ms is {self._now - now} less than that of a line before it")
            if self._begun is None:
                yield items.Contradiction(f"{key} is before run_start or after run_stop")
            self._now = now
            if losses:
                yield from self._step(number("loss", losses[0]), stats.get("train_step_time"), about)
            elif key in _EVENTS:
                yield from _EVENTS[key](self, value, about)
            elif "train_step_time" in stats:
                self._mean = duration("train_step_time", stats["train_step_time"])
            else:
                self._mean = self._batch / duration("throughput", stats["throughput"])

    def _step(self, loss: float, last: Any, about: Mapping[str, Any]) -> Iterator[items.Item]:
        """Read a line about all steps since the one before; `last` is the duration of the last step alone."""
        done, (before, then) = self._steps(about.get("samples_count", about.get("step"))), self._line
        if "samples_count" in about and about.get("step", done) not in (done - 1, done):  # counted from 0, or from 1
            raise items.Unreadable(f"{about['samples_count']} samples are step {done}, and it says {about['step']}")
        if self._block is None:
            yield items.Contradiction(f"the line of step {done} is outside of a block")
            return
        elapsed, own = self._trained + self._now - self._block, as_number(last)
        yield items.StepLine(
            step=done, samples=self._batch, loss=loss,
            seconds=duration("its time", (elapsed - then) / 1000 / (done - before)) if done > before else None,
            reported={} if own is None else {"train_step_time": own},
        )  # fmt: skip
        if done > before:
            self._line, self._interval = (done, elapsed), done - before

    def _steps(self, samples: Any) -> int:
        """Convert a number of samples to one of steps."""
        steps, rest = divmod(_whole("samples", samples), self._batch) if self._batch else (0, 1)
        if rest:
            raise items.Unreadable(f"{samples} samples do not divide by the batch, {self._batch or 'unknown'}")
        return steps

    def _begin_block(self, _: Any, about: Mapping[str, Any]) -> Iterator[items.Item]:
        first = _whole("step", about["step"]) if "step" in about else self._steps(about.get("samples_count"))
        if self._block is not None or self._length is not None or first != self._done:
            yield items.Contradiction(f"a block begins at step {first}, and {self._done} were done and evaluated")
            self._line = self._line[0], self._trained
        self._block, self._mean = self._now, None

    def _end_block(self, _: Any, __: Mapping[str, Any]) -> Iterator[items.Item]:
        if self._block is None:
            yield items.Contradiction("a block ends that did not begin")
            return
        self._length, self._block = self._now - self._block, None
        self._trained += self._length

    def _evaluate(self, _: Any, about: Mapping[str, Any]) -> Iterator[items.Item]:
        """Read the number of steps of the block before."""
        done, length = self._steps(about.get("samples_count")), self._length
        steps, self._done, self._length = done - self._done, done, None
        if length is None and steps == 0:
            return  # one more evaluation, or one before the first step
        if self._mean is None:
            yield items.Count("blocks_without_a_mean")
        if length is None or steps <= 0:
            yield items.Contradiction(f"an evaluation after step {done} is not behind a block of steps")
        elif self._mean is not None and self._mean * steps > (1 + _SHARE) * length / 1000 + _EARLY_S:
            yield items.Contradiction(
                f"the block up to step {done} took {length / 1000:.6g} s for {steps} steps of {self._mean:.6g} s each"
            )
        elif self._interval is None:
            self._whole = steps, duration("its time", length / 1000 / steps)
        elif not 0 <= done - self._line[0] < self._interval:
            yield items.Contradiction(f"the block up to step {done} has lines up to step {self._line[0]}")

    def _take_accuracy(self, value: Any, _: Mapping[str, Any]) -> Iterator[items.Item]:
        self._accuracy = number("eval_accuracy", value)
        if self._whole is not None:
            (steps, seconds), self._whole = self._whole, None
            yield items.StepLine(
                step=self._done, interval=steps, samples=self._batch, seconds=seconds, loss=self._accuracy
            )
        yield items.Pause()

    def _stop(self, _: Any, about: Mapping[str, Any]) -> Iterator[items.Item]:
        done = self._steps(about["samples_count"]) if "samples_count" in about else self._done
        if self._block is not None or self._length is not None or done != self._done:
            yield items.Contradiction(f"it stops otherwise than after step {self._done} and its evaluation")
        if self._begun is not None:
            yield items.Total("run_s", (self._now - self._begun) / 1000)
        if self._accuracy is not None:
            yield items.Total("eval_accuracy", self._accuracy)
        self._begun, status = None, str(about.get("status"))[:40]
        yield (items.Completed if status == "success" else items.Failed)(f"run_stop after step {self._done}: {status}")


_EVENTS: Mapping[Any, Callable[[Dialect, Any, Mapping[str, Any]], Iterator[items.Item]]] = {
    "block_start": Dialect._begin_block, "block_stop": Dialect._end_block, "eval_start": Dialect._evaluate,  # noqa: SLF001
    "eval_accuracy": Dialect._take_accuracy, "run_stop": Dialect._stop,  # noqa: SLF001
}  # fmt: skip


def read_claims(text: str) -> Iterator[items.Said | items.Printed]:
    """Yield the batch, the length of sequences and the benchmark, and the layout where NVIDIA's script prints it."""
    if match := _CONFIG.fullmatch(text):
        nodes, gpus, tensor, pipeline, context = map(int, match.groups()[:5])
        yield from (items.Said("world_size", nodes * gpus), items.Said("tensor", tensor))
        yield from (items.Said("pipeline", pipeline), items.Said("context_parallel", context))
        if "fp4" in (match[6] or ""):
            yield items.Said("precision", "nvfp4")
    elif match := _LINE.search(text) if any(f'"{key}"' in text for key in (*_CLAIMS, "submission_benchmark")) else None:
        try:
            event = read_json(match[1], once=True)
            key, value = str(event["key"]), event["value"]
        except (ValueError, KeyError, TypeError):
            return
        if key in _CLAIMS and (size := as_number(value)) is not None:
            yield items.Said(_CLAIMS[key], int(size) if size.is_integer() else size)
        elif key == "submission_benchmark":
            yield items.Printed(key, str(value)[:100])


def _whole(name: str, value: Any) -> int:
    result = number(name, value)
    if not 0.0 <= result < 1e15 or not result.is_integer():
        raise items.Unreadable(f"{name} is {result:g}, not a whole number")
    return int(result)


READER = LogReader(
    name="mlperf",
    dialect=lambda: Dialect().parse,
    claims=read_claims,
    needles=items.Needles((b":::MLLOG",), (b":::DLPAL",)),
)
