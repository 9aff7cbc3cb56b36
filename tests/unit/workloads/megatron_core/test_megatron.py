"""Megatron-Core's training on CPU ranks: whatever the layout, it is the training of engine torch."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import merge
from pytest_llmbench.engines.megatron_core.engine import ENGINE
from pytest_llmbench.engines.megatron_core.options import padded_vocabulary
from pytest_llmbench.engines.torch.engine import ENGINE as TORCH
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.readers.steps.step_log import read_steps
from tests.conftest import known, made_once
from tests.support.training.same_loss import several
from tests.unit.workloads.conftest import Fork, Launch, MakeRecipe, close, losses, norms

pytestmark = [
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs Megatron-Core: pip install megatron-core"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks"),
]

# Engine torch lets norms and biases decay too, Megatron-Core only matrices. Compiling takes longer than training.
BASE: Mapping[str, Any] = {
    "model": {"layers": 4, "attention_heads": 4}, "optimizer": {"weight_decay": 0.0, "warmup_steps": 2},
    "compile": False, "steps": 3, "warm_up": {"rule": "skip_first", "steps": 1},
}  # fmt: skip
# Ranks of each layout, and what its recipe says of it.
LAYOUTS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "tensor": (2, {"parallelism": {"tensor": 2}}),
    "sequence": (2, {"parallelism": {"tensor": 2, "sequence": True}}),
    "interleaved": (2, {"parallelism": {"pipeline": 2, "virtual_pipeline": 2}}),
    "copies": (2, {}),
    "sharded": (2, {"parallelism": {"sharding": "optimizer"}}),
    "selective": (
        1,
        {
            "parallelism": {"activation_checkpointing": "selective"},
            "options": {"transformer_impl": "local", "attention": "unfused"},
        },
    ),
    "full": (1, {"parallelism": {"activation_checkpointing": "full"}}),
    "interleaved_sharded": (4, {"parallelism": {"pipeline": 2, "virtual_pipeline": 2, "sharding": "optimizer"}}),
    "all_at_once": (
        4, {"parallelism": {"tensor": 2, "sequence": True, "pipeline": 2, "activation_checkpointing": "full"}},
    ),
    "one_rank": (1, {}),
}  # fmt: skip
DROPS: Mapping[str, Any] = {"model": {"dropout": 0.1}, "parallelism": {"tensor": 2, "sequence": True}}
IN_16_BITS: Mapping[str, Any] = {"parallelism": {"sharding": "optimizer"}}
# Trainings that are compared with each other.
OTHERS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "rope": (1, {"model": {"positions": "rope"}}),
    "rope_in_stages": (2, {"model": {"positions": "rope"}, "parallelism": {"pipeline": 2}}), "kept": (2, DROPS),
    "recomputed": (2, merge(DROPS, {"parallelism": {"activation_checkpointing": "full"}})),
    "bf16": (2, {**IN_16_BITS, "precision": "bf16"}), "fp16": (1, {**IN_16_BITS, "precision": "fp16"}),
    "overflowing": (1, {"precision": "fp16", "options": {"loss_scale": 1e30}}),
}  # fmt: skip
TODAY: Mapping[str, Any] = {
    "positions": "rope", "query_groups": 2, "head_size": 24, "query_key_norm": True, "feed_forward_size": 96,
    "activation": "swiglu", "norm": "rms_norm", "biases": "none", "tied_embeddings": False,
    "rotary": {"base": 500000, "scaling": {"factor": 4}},
}  # fmt: skip
# Shapes of today, each on one rank and spread.
OF_TODAY: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "today": (1, {"model": TODAY}),
    "today_sequence": (2, {"model": TODAY, "parallelism": {"tensor": 2, "sequence": True}}),
    "today_stages": (2, {"model": TODAY, "parallelism": {"pipeline": 2, "sharding": "optimizer"}}),
    "today_qkv": (2, {"model": {**TODAY, "biases": "qkv", "tied_embeddings": True}, "parallelism": {"tensor": 2}}),
}
# Steps that are small enough for rounding not to grow.
SLOW: Mapping[str, Any] = {"optimizer": {"learning_rate": 2e-4}}
# Its ranks write down every phase of their last step, in order, and measure no products.
NOTING = """
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.engines.megatron_core.ranks import run as megatron

class Noting:
    def __init__(self, log, notes, last):
        self._log, self._notes, self._last = log, notes, last
    def __getattr__(self, name):
        return getattr(self._log, name)
    def phase(self, step, name, micro_batch=0):
        self._log.phase(step, name, micro_batch)
        if step == self._last:
            print(name, micro_batch or "", file=self._notes)

def train(context, log):
    matmul.measure = lambda *_: 1e9
    with (context.folder / f"phases-{context.rank}").open("w") as notes:
        megatron.train(context, Noting(log, notes, context.config["steps"]))
"""

Train = Callable[..., Path]
Trained = Callable[[str], StepSeries]


@pytest.fixture(scope="module")
def train(make_recipe: MakeRecipe, fork: Fork, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run the tiny recipe on some ranks, with some of its values replaced; returns the run's folder."""

    def run(ranks: int = 1, *, entry: str = "noting:train", new: bool = False, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("run")
        (folder / "noting.py").write_text(NOTING)
        recipe = make_recipe(**merge(BASE, changes)).model_dump(mode="json")
        for process in (launch if new else fork)(folder, entry, ranks=ranks, config=recipe):
            assert process.wait(120) == 0, (folder / "output-0").read_text()
        return folder

    return run


@pytest.fixture(scope="module")
def by_torch(train: Train) -> StepSeries:
    return read_steps(train(entry=TORCH.entry))


@pytest.fixture(scope="module")
def trained(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Read one of all trainings, which four ranks made one after the other: starting takes longer than training."""
    recipes = {
        name: (ranks, make_recipe(**merge(BASE, {"engine": ENGINE.name, **changes})))
        for name, (ranks, changes) in {
            **LAYOUTS,
            **OTHERS,
            **{name: (ranks, {**of, **SLOW}) for name, (ranks, of) in OF_TODAY.items()},
        }.items()
    }

    def train_all(folder: Path) -> None:
        told = several(folder, ENGINE.name, recipes, "cpu")
        for process in fork(folder, ranks=told["ranks_per_node"], **told):
            assert process.wait(300) == 0, (folder / "output-0").read_text()

    folder = made_once(tmp_path_factory, "megatron", train_all)
    return lambda name: read_steps(folder / name)


@pytest.fixture(scope="module")
def today_by_torch(train: Train) -> Callable[[str], StepSeries]:
    """Train a shape of today with engine torch, once for each model."""
    series: dict[str, StepSeries] = {}

    def of(name: str) -> StepSeries:
        model = OF_TODAY[name][1]["model"]
        if str(model) not in series:
            series[str(model)] = read_steps(train(entry=TORCH.entry, model=model, **SLOW))
        return series[str(model)]

    return of


@pytest.fixture(scope="module")
def pipeline(train: Train) -> Path:
    return train(2, new=True, parallelism={"pipeline": 2})


def test_stages_train_as_engine_torch_does(pipeline: Path, by_torch: StepSeries) -> None:
    assert_equal_training(read_steps(pipeline), by_torch, ranks=2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_as_engine_torch_does(layout: str, trained: Trained, by_torch: StepSeries) -> None:
    assert_equal_training(trained(layout), by_torch, ranks=LAYOUTS[layout][0])


def assert_equal_training(series: StepSeries, expected: StepSeries, *, ranks: int) -> None:
    """All ranks logged a whole run, with the losses and gradient norms of another."""
    assert series.unreadable == ()
    assert all(info.ended and info.matmul_flops_per_s for info in series.ranks)
    assert [(step.step, step.ranks) for step in series.steps] == [(n, ranks) for n in range(1, 4)]
    assert {(step.tokens, step.samples) for step in series.steps} == {(8 * 32, 8)}
    assert losses(series) == close(losses(expected))
    assert norms(series) == close(norms(expected))


@pytest.mark.parametrize("name", OF_TODAY)
def test_a_dense_shape_of_today_trains_as_engine_torch_does(
    name: str, trained: Trained, today_by_torch: Callable[[str], StepSeries]
) -> None:
    assert_equal_training(trained(name), today_by_torch(name), ranks=OF_TODAY[name][0])


@pytest.mark.parametrize("name", OF_TODAY)
def test_ranks_count_the_parameters_of_a_shape_of_today(name: str, trained: Trained, make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(**merge(BASE, OF_TODAY[name][1]))
    model, counted = recipe.model, Counter[int]()
    for info in trained(name).ranks:
        counted[known(info.training).copy_rank] += known(info.training).parameters
    padding = padded_vocabulary(model.vocab_size, recipe.parallelism.tensor) - model.vocab_size
    tables = padding * model.hidden_size * (1 if model.tied_embeddings else 2)
    assert set(counted.values()) == {parameters(model, recipe.sequence_length) + tables}


def test_one_rank_of_each_copy_counts_the_work_and_all_know_the_loss(pipeline: Path) -> None:
    """The last stage counts the tokens of both, and the first one knows the loss from it."""
    logs = [(pipeline / "steps" / f"rank-0000{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    first, last = ([event for line in log if (event := json.loads(line))["event"] == "step"] for log in logs)
    assert {(step["tokens"], step["samples"]) for step in first} == {(0, 0)}
    assert {(step["tokens"], step["samples"]) for step in last} == {(8 * 32, 8)}
    assert [step["loss"] for step in first] == [step["loss"] for step in last]


def test_phases_follow_the_schedule(pipeline: Path) -> None:
    """The first stage is one micro batch ahead; the last goes back with each one at once."""
    first, last = ((pipeline / f"phases-{rank}").read_text().split("\n")[:-1] for rank in range(2))
    assert [phase.strip() for phase in first] == [
        "data 1", "forward 1", "data 2", "forward 2", "backward 1", "data 3", "forward 3", "backward 2",
        "data 4", "forward 4", "backward 3", "backward 4", "sync", "optimizer",
    ]  # fmt: skip
    assert [phase.strip() for phase in last] == [
        *(f"{phase} {micro_batch}" for micro_batch in range(1, 5) for phase in ("data", "forward", "backward")),
        "sync",
        "optimizer",
    ]


@pytest.mark.parametrize(("plain", "other"), [("rope", "rope_in_stages"), ("kept", "recomputed")])
def test_positions_and_dropout_are_always_alike(trained: Trained, by_torch: StepSeries, plain: str, other: str) -> None:
    """Rotary positions train another model than learned ones, and the same on one rank or two stages.

    Recomputed activations drop what the forward pass dropped, on each tensor-parallel rank its own part.
    """
    assert losses(trained(other)) == close(losses(trained(plain)))
    assert norms(trained(other)) == close(norms(trained(plain)))
    assert norms(trained(plain)) != close(norms(by_torch))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_follows_single_precision(trained: Trained, by_torch: StepSeries, precision: str) -> None:
    """In 16 bits, with its optimizer in 32, the loss stays within 2 in 1000 of that in 32 bits, and is not the same."""
    series = trained(precision)
    assert losses(series) == close(losses(by_torch), rel=2e-3)
    assert losses(series) != losses(by_torch)


def test_a_step_that_overflows_has_no_gradient(trained: Trained) -> None:
    """Gradients too large for fp16 are logged as infinite, and no such step changes the model."""
    series = trained("overflowing")
    assert norms(series) == [math.inf] * 3
    assert losses(series) == pytest.approx([math.log(256)] * 3, abs=0.05)
