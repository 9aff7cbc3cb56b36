"""Base class for engines that run an external program: a script starts it, and its log is the only evidence.

Also the checks that the log shows a training: plausible losses, and a rate that fits the recipe's work.
"""

import math
import statistics as stats
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pytest_llmbench.core.recipe.environments import fill_in
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import SettingsCheck
from pytest_llmbench.core.record.series import Progress, Step, StepSeries
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import Engine, Place, Script
from pytest_llmbench.engines.overrides import Rules
from pytest_llmbench.judging.agreement import check_steady
from pytest_llmbench.judging.flops import causal_flops_per_token, flops_per_token
from pytest_llmbench.judging.memory import Footprint, State
from pytest_llmbench.judging.statistics import Measurement
from pytest_llmbench.readers.log import READERS, LogReader, last_step, last_words, log_files, read_log
from pytest_llmbench.readers.nccl import find_faults

# Least number of lines, so that there is a last quarter.
_FEWEST = 4
# An untrained model's loss, as a share of ln(vocabulary): JSC's 13B begins at 1.23 of it, in the mean of ten steps that
# already learn.
_LEAST_AT_START, _MOST_AT_START = 0.4, 2.0
# Last step whose loss counts as that of an untrained model.
_START = 10
# Least share of the first loss that remains after the hundreds of steps of a benchmark.
_NOTHING_LEFT = 0.01
# Smaller TFLOP/s, printed with one decimal, are too coarse to compare.
_READABLE_TFLOPS = 5.0
# A log counts half of the attention at least, and a second forward pass of all layers at most; and it rounds.
_RECOMPUTED, _ROUNDED = 4 / 3, 0.05

# A list is several words; null leaves an argument out.
Argument = str | int | float | bool | tuple[str | float, ...] | None


class ProgramOptions(Strict):
    """Options that all engines have whose program takes arguments."""

    arguments: Mapping[str, Argument] = {}
    """Further arguments of the program, or overrides of its configuration; a list is several words, and null leaves one
    out."""
    notes: tuple[str, ...] = ()
    """Deviations from the source, with the reasons, for the head of the script."""


class External(Engine, ABC):
    """See `base.Engine`. An engine adds its name, its options, its script and its reader."""

    kind: Literal["ranks", "command"] = "command"
    reader: LogReader | str  # of its log, or the name of one that is announced
    # Patterns of the files to read under a run's folder, or under a folder of logs made elsewhere.
    logs: tuple[str, ...] = (layout.OUTPUT, "*.log", "*.out", "*.err", "*.txt")

    @abstractmethod
    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script: ...

    def arguments(self, recipe: Recipe, topology: Topology | None = None) -> Rules:
        """Return the rules of the framework's arguments; without a topology, some are left out: of numbers of ranks."""
        return Rules()

    def log_reader(self) -> LogReader:
        return READERS.load(self.reader) if isinstance(self.reader, str) else self.reader

    def uncounted(self, recipe: Recipe) -> str | None:
        return self.arguments(recipe).unknown()

    def compare(self, recipe: Recipe, topology: Topology, series: StepSeries) -> SettingsCheck:
        return self.arguments(recipe, topology).compare(series.settings)

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        """Return mixed precision with AdamW; as programs may keep less, the least is weights and small moments."""
        if self.uncounted(recipe) is not None:
            return None
        half = recipe.precision != "fp32"
        states = {
            "none": (State(6), State(18 if half else 16)),
            "optimizer": (State(2, 4), State(6, 12) if half else State(8, 8)),
            "gradients": (State(2, 4), State(2, 14) if half else State(4, 12)),
            "full": (State(0, 6), State(0, 16)),
        }
        least, usual = states[recipe.parallelism.sharding]
        return Footprint(least=least, usual=usual, activation=34, logit=6)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        size = recipe.parallelism.model_parallel_size
        if topology.world_size % size:
            yield (
                f"{topology.world_size} ranks ({topology}) do not divide into copies of the model of {size} ranks each "
                f"(tensor {recipe.parallelism.tensor} × pipeline {recipe.parallelism.pipeline})"
            )
        yield from self.arguments(recipe, topology).problems()

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        files = [folder] if folder.is_file() else log_files(folder, self.logs)
        reader = self.log_reader()
        series = read_log(files, reader.dialect(), reader.claims, reader.needles)
        steps = tuple(step.model_copy(update={"tokens": self.tokens_of(step, recipe)}) for step in series.steps)
        interval = series.log_interval or _log_interval(recipe)
        return series.model_copy(update={"steps": steps, "log_interval": interval, "transport": find_faults(files)})

    def tokens_of(self, step: Step, recipe: Recipe) -> int | None:
        """Count the tokens of a step; without a logged count, a sample is a sequence of the recipe's length."""
        if step.tokens is not None or step.samples is None:
            return step.tokens
        return step.samples * recipe.sequence_length

    def progress(self, folder: Path) -> Progress | None:
        steps = (last_step(path, self.log_reader().dialect()) for path in log_files(folder, self.logs))
        return max((last for last in steps if last is not None), key=lambda last: last.step, default=None)

    def laggards(self, folder: Path) -> str:
        words = last_words(self.output(folder))
        return f"the last line of its output is: {words[:300]}" if words else "it printed nothing"

    def output(self, folder: Path) -> Path:
        return folder / layout.OUTPUT


def _log_interval(recipe: Recipe) -> int | None:
    arguments = recipe.options.get("arguments")
    interval = str(arguments.get("log-interval")) if isinstance(arguments, Mapping) else ""
    return (int(interval) or None) if interval.isdecimal() else None


def fill(text: str, place: Place, where: str) -> str:
    """Replace `{root}`, `{data}` and the environment's other names, and `{run}` by the run's folder.

    Raises ConfigError if the environment lacks a name.
    """
    return fill_in(text, {**place.environment.names, "run": str(place.folder)}, where)


def fill_arguments(arguments: Mapping[str, Argument], place: Place, where: str) -> dict[str, Any]:
    """Fill in each argument, or each word of one; numbers and switches stay as they are."""

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(filled, value))
        return fill(value, place, where) if isinstance(value, str) else value

    return {name: filled(value) for name, value in arguments.items()}


def program_words(program: str, place: Place, where: str) -> tuple[str, ...]:
    """Return the words by which torchrun starts a script, or after `module:` a module and its first arguments."""
    name = fill(program, place, where)
    module = name.removeprefix("module:")
    return ("-m", *module.split()) if module != name else (name,)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Format arguments for a command line: `True` is a bare flag, `False` and `None` are left out.

    A list is one flag with several words.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += map(str, value) if isinstance(value, list | tuple) else [str(value)]
    return words


def over_lines(
    m: Measurement, values: Sequence[float | None], summary: Callable[[Sequence[float]], float]
) -> float | None:
    """Summarize a value of all lines; None without lines, or if one is unreadable or lacks it."""
    known = [value for value in values if value is not None]
    return summary(known) if known and len(known) == len(values) and not m.unread else None


def check_training(
    engine: Engine, recipe: Recipe, topology: Topology, series: StepSeries, *, untrained: bool = True
) -> Iterator[str]:
    """Yield what contradicts that a log shows this training; `untrained` if it began with random weights."""
    yield from series.contradictions
    yield from check_steady(series.steps, topology)
    yield from _check_loss_drop(series)
    if untrained:
        yield from _check_first_loss(recipe, series)
    yield from _check_logged_rate(engine, recipe, topology, series)


def _check_loss_drop(series: StepSeries) -> Iterator[str]:
    """Yield a loss that fell further than so few steps of training can bring it."""
    losses = [step.loss for step in series.steps if step.loss is not None]
    last = losses[-max(1, len(losses) // 4) :]
    if len(losses) >= _FEWEST and sum(last) < _NOTHING_LEFT * losses[0] * len(last):
        end = sum(last) / len(last)
        yield f"the loss fell from {losses[0]:.4g} to {end:.4g}: no training converges so fast"


def check_missing_losses(series: StepSeries) -> Iterator[str]:
    """Yield a line without a loss although it reports no skipped step, if other lines have losses."""
    made = [step for step in series.steps if step.reported.get("number_of_skipped_iterations") == 0.0]
    without = [step.step for step in made if step.loss is None]
    if without and len(without) < len(series.steps):
        yield f"the line of step {without[0]} has no loss, though none of its steps was skipped"


def _check_first_loss(recipe: Recipe, series: StepSeries) -> Iterator[str]:
    """Yield a first loss outside of the range of an untrained model."""
    first = next((step for step in series.steps if step.loss is not None), None)
    if first is None or first.loss is None or first.step > _START:
        return
    due = math.log(recipe.model.vocab_size)
    if not _LEAST_AT_START * due <= first.loss <= _MOST_AT_START * due:
        yield (
            f"the loss is {first.loss:.4g} at step {first.step}, where a model that has learned nothing has about "
            f"{due:.4g} (ln of {recipe.model.vocab_size} tokens): this is not the beginning of a training of this model"
        )


def _check_logged_rate(engine: Engine, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
    """Yield a logged rate and step time whose product differs from the work of the recipe's step."""
    flops = [work for step in series.steps if (work := _step_flops(step, topology)) is not None]
    if not flops or engine.uncounted(recipe) is not None:
        return
    mean, model = stats.median(flops) / recipe.tokens_per_step, recipe.model
    most = flops_per_token(model, recipe.sequence_length)
    least = causal_flops_per_token(model, recipe.sequence_length)
    if not (1 - _ROUNDED) * least <= mean <= (1 + _ROUNDED) * _RECOMPUTED * most:
        yield (
            f"its TFLOP/s per GPU and its time per step are those of {mean:.4g} FLOPs per token; of this model and "
            f"sequence they are {least:.4g} to {_RECOMPUTED * most:.4g}, by how attention and recomputation are counted"
        )


def _step_flops(step: Step, topology: Topology) -> float | None:
    names = ("tflops", "throughput_per_gpu", "model_tflops", "TFLOPS_per_GPU")
    rate = next((step.reported[name] for name in names if name in step.reported), None)
    if rate is None or rate < _READABLE_TFLOPS or step.seconds is None:
        return None
    return 1e12 * rate * step.seconds * topology.world_size
