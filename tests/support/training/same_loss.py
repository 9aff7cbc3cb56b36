"""How far the losses of the engines are from those of `plain_decoder`, for a test and the program `losses/compare.py`.

An engine and the reference share their data: the tokens (`workloads.tokens`) and the initial weights, which the
engine's own initialiser draws. All else the reference computes itself. Of the engine only the step log is read: the
mean loss and the norm of the gradient of every step.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.training.tokens import open_tokens
from tests.support.training.plain_decoder import NONE, Mistake, Point, Rules, train

Engine = Literal["torch", "megatron_core", "deepspeed"]
ENGINES: tuple[Engine, ...] = ("torch", "megatron_core", "deepspeed")


class Difference(NamedTuple):
    """The largest one of all steps, relative: of the loss, and of the gradient's norm."""

    loss: float
    norm: float

    def within(self, bound: Difference) -> bool:
        """Whether both are at most those of a bound; NaN is not."""
        return self.loss <= bound.loss and self.norm <= bound.norm


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How an engine trains."""

    engine: Engine
    name: str
    ranks: int
    precision: Literal["fp32", "bf16"] = "fp32"
    changes: Mapping[str, Any] = field(default_factory=dict)  # its recipe's fields

    @property
    def key(self) -> str:
        return f"{self.engine}-{self.name}-{self.precision}"

    def recipe(self, shape: Mapping[str, Any]) -> Recipe:
        own = {"engine": self.engine, "name": self.key, "precision": self.precision}
        return validate(Recipe, merge(merge(shape, own), self.changes), self.key)


# Parameters that weight decay applies to, by engine.
_DECAYED: Mapping[str, Literal["all", "matrices"]] = {"torch": "all", "megatron_core": "matrices", "deepspeed": "all"}
_CHECKPOINTED = {"parallelism": {"activation_checkpointing": "full"}}
_SHARDED = {"parallelism": {"sharding": "full"}}
_OPTIMIZER = {"parallelism": {"sharding": "optimizer"}}
_GRADIENTS = {"parallelism": {"sharding": "gradients"}}
_INTERLEAVED = {"parallelism": {"pipeline": 2, "virtual_pipeline": 2}}
_TENSOR = {"parallelism": {"tensor": 2, "sequence": True}, "micro_batch_size": 4}
_BOTH = {"parallelism": {"tensor": 2, "sequence": True, "pipeline": 2}}

# Layouts differ in the number of accumulated micro batches as well: four, or two on each rank.
LAYOUTS = (
    Layout(engine="torch", name="one_rank", ranks=1),
    Layout(engine="torch", name="checkpointing", ranks=1, changes=_CHECKPOINTED),
    Layout(engine="torch", name="ddp", ranks=2),
    Layout(engine="torch", name="fsdp", ranks=2, changes=_SHARDED),
    Layout(engine="torch", name="fsdp_kept", ranks=2, changes=_GRADIENTS),
    Layout(engine="torch", name="tensor", ranks=2, changes={"parallelism": {"tensor": 2, "sequence": True}}),
    Layout(engine="torch", name="one_rank", ranks=1, precision="bf16"),
    Layout(engine="torch", name="ddp", ranks=2, precision="bf16"),
    Layout(engine="torch", name="fsdp", ranks=2, precision="bf16", changes=_SHARDED),
    Layout(engine="torch", name="fsdp_kept", ranks=2, precision="bf16", changes=_GRADIENTS),
    Layout(engine="megatron_core", name="one_rank", ranks=1),
    Layout(engine="megatron_core", name="distributed_optimizer", ranks=2, changes=_OPTIMIZER),
    Layout(engine="megatron_core", name="tensor_sequence", ranks=2, changes=_TENSOR),
    Layout(engine="megatron_core", name="pipeline", ranks=2, changes={"parallelism": {"pipeline": 2}}),
    Layout(engine="megatron_core", name="interleaved", ranks=2, changes=_INTERLEAVED),
    Layout(engine="megatron_core", name="distributed_optimizer", ranks=2, precision="bf16", changes=_OPTIMIZER),
    Layout(engine="deepspeed", name="zero0", ranks=2),
    Layout(engine="deepspeed", name="zero1", ranks=2, changes=_OPTIMIZER),
    Layout(engine="deepspeed", name="zero2", ranks=2, changes=_GRADIENTS),
    Layout(engine="deepspeed", name="zero3", ranks=2, changes=_SHARDED),
    Layout(engine="deepspeed", name="zero0", ranks=2, precision="bf16"),
    Layout(engine="deepspeed", name="zero2", ranks=2, precision="bf16", changes=_GRADIENTS),
)
# Further layouts on GPUs.
ON_GPUS = (
    Layout(engine="torch", name="compiled", ranks=2, precision="bf16", changes={"compile": True}),
    Layout(engine="megatron_core", name="tensor_sequence", ranks=2, precision="bf16", changes=_TENSOR),
    Layout(engine="megatron_core", name="interleaved", ranks=2, precision="bf16", changes=_INTERLEAVED),
    Layout(engine="megatron_core", name="tensor_pipeline", ranks=4, precision="bf16", changes=_BOTH),
    Layout(engine="deepspeed", name="zero3", ranks=2, precision="bf16", changes=_SHARDED),
)

# Takes seconds on a CPU. The vocabulary must not be a multiple of 8, and gradients are clipped in some of the steps.
# Weights decay five times as fast as usual, or ten steps would hardly show it.
SMALL: Mapping[str, Any] = {
    "gpus_per_node": 0,
    "model": {"layers": 4, "hidden_size": 32, "attention_heads": 4, "vocab_size": 250, "dropout": 0.0},
    "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2, "compile": False,
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 4, "weight_decay": 0.5, "clip_grad_norm": 1.15}, "steps": 10,
    "time_limit": "00:10:00", "deadlines": {"startup_s": 120},
}  # fmt: skip


def task(folder: Path, shape: Mapping[str, Any], layouts: Sequence[Layout], device: str) -> dict[str, Any]:
    """What the ranks of one engine have to be told to train all of these layouts.

    Args:
        folder: the run's, where they find the program; it has to be on their path.
        shape: a recipe, but for what a layout says.
        layouts: of one engine.
        device: `cuda` or `cpu`.
    """
    trainings = {layout.key: (layout.ranks, layout.recipe(shape)) for layout in layouts}
    return several(folder, layouts[0].engine, trainings, device)


def several(folder: Path, engine: str, trainings: Mapping[str, tuple[int, Recipe]], device: str) -> dict[str, Any]:
    """What ranks have to be told to train recipes of one engine, each on so many of them, in folders of its name."""
    shutil.copy(Path(__file__).with_name("several_trainings.py"), folder)
    recipes = {
        name: {"ranks": ranks, "recipe": recipe.model_dump(mode="json")} for name, (ranks, recipe) in trainings.items()
    }
    return {
        "entry": "several_trainings:train_all", "config": {"engine": engine, "recipes": recipes}, "nodes": 1,
        "ranks_per_node": max(ranks for ranks, _ in trainings.values()), "device": device,
    }  # fmt: skip


def logged(folder: Path, layout: Layout) -> list[Point]:
    """What a layout's ranks have logged in the folder of `task`.

    Raises:
        ValueError: some rank did not log a whole run.
    """
    series = read_steps(folder / layout.key)
    ended = [info.rank for info in series.ranks if info.ended]
    partly = [step.step for step in series.steps if step.ranks != layout.ranks]
    if len(ended) != layout.ranks or partly or series.unreadable:
        raise ValueError(
            f"{folder / layout.key}: of {layout.ranks} ranks {len(ended)} logged a whole run: see output-*"
        )
    return [Point(step.loss or math.nan, step.grad_norm or math.nan) for step in series.steps]


def reference(folder: Path, recipe: Recipe, mistake: Mistake = NONE) -> list[Point]:
    """Train a recipe by `tests.support.training.plain_decoder` from the weights that are in the folder of `task`."""
    weights = torch.load(folder / "initial.pt", weights_only=True)
    return list(train(weights, batches(recipe), rules(recipe), mistake))


def batches(recipe: Recipe) -> Iterator[torch.Tensor]:
    data, size = open_tokens(recipe), recipe.samples_per_step
    for first in range(0, recipe.steps * size, size):
        yield torch.stack([data.sequence(number) for number in range(first, first + size)])


def rules(recipe: Recipe) -> Rules:
    settings = recipe.optimizer
    return Rules(
        attention_heads=recipe.model.attention_heads, learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps, steps=recipe.steps, betas=settings.betas, eps=settings.eps,
        weight_decay=settings.weight_decay, clip_grad_norm=settings.clip_grad_norm, decayed=_DECAYED[recipe.engine],
    )  # fmt: skip


def difference(points: Sequence[Point], expected: Sequence[Point]) -> Difference:
    """How far one training is from another of as many steps."""
    pairs = list(zip(points, expected, strict=True))
    return Difference(
        loss=_largest(abs(ours.loss - theirs.loss) / theirs.loss for ours, theirs in pairs),
        norm=_largest(abs(ours.norm - theirs.norm) / theirs.norm for ours, theirs in pairs),
    )


def _largest(numbers: Iterable[float]) -> float:
    """The largest number; NaN where one is, which max() may drop."""
    found = list(numbers)
    return math.nan if any(map(math.isnan, found)) else max(found)
