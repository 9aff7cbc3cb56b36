"""The training loop: alone in this process, and as two real ranks."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Span
from pytest_llmbench.core.record.series import RankInfo, StepSeries
from pytest_llmbench.core.wire.step_events import TrainingEvent
from pytest_llmbench.engines.base import Place
from pytest_llmbench.engines.torch.engine import ENGINE
from pytest_llmbench.workloads.rank.steplog import StepLog
from tests.conftest import known
from tests.unit.workloads.conftest import Fork, MakeRecipe, TrainAlone, close, losses, norms

SHARDED = {"sharding": "full", "activation_checkpointing": "full"}


@pytest.fixture(scope="module")
def two_ranks(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepSeries]:
    """The tiny recipe on two ranks: whole on each, sharded, and sharded with parameters kept in the step."""
    return {
        "whole": _run(fork, make_recipe(), tmp_path_factory.mktemp("whole")),
        "sharded": _run(fork, make_recipe(parallelism=SHARDED), tmp_path_factory.mktemp("sharded")),
        "sharded_in_parts": _run(fork, make_recipe(parallelism=SHARDED, micro_batch_size=1),
                                 tmp_path_factory.mktemp("in_parts")),
        "kept_in_parts": _run(fork, make_recipe(parallelism={"sharding": "gradients"}, micro_batch_size=1),
                              tmp_path_factory.mktemp("kept")),
    }  # fmt: skip


def _run(fork: Fork, recipe: Recipe, folder: Path, ranks: int = 2) -> StepSeries:
    place = Place(folder=folder, environment=Environment(), slurm=False, time_limit_min=1)
    task = ENGINE.work(recipe, Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=ranks), place)
    for process in fork(folder, task.entry, ranks=ranks, config=dict(task.config)):
        assert process.wait(300) == 0, (folder / "output-0").read_text()
    return ENGINE.read(folder, recipe)


def test_two_ranks_log_a_whole_run(two_ranks: dict[str, StepSeries]) -> None:
    series = two_ranks["whole"]
    assert series.unreadable == ()
    assert [(info.rank, info.local_rank, info.ended) for info in series.ranks] == [(0, 0, True), (1, 1, True)]
    assert all(info.matmul_flops_per_s for info in series.ranks)
    assert [(step.step, step.ranks) for step in series.steps] == [(n, 2) for n in range(1, 13)]
    assert {(step.tokens, step.samples) for step in series.steps} == {(8 * 32, 8)}
    assert all(step.peak_memory_bytes for step in series.steps)


def test_the_loss_falls(two_ranks: dict[str, StepSeries]) -> None:
    first, *_, last = losses(two_ranks["whole"])
    assert first == pytest.approx(math.log(256), abs=0.02)
    assert last < first - 0.8


def test_two_ranks_train_as_one_does(two_ranks: dict[str, StepSeries], make_recipe: MakeRecipe,
                                     train_alone: TrainAlone) -> None:  # fmt: skip
    alone = train_alone(make_recipe())
    assert losses(two_ranks["whole"]) == close(losses(alone))
    assert norms(two_ranks["whole"]) == close(norms(alone))


def test_sharding_changes_no_number(two_ranks: dict[str, StepSeries]) -> None:
    assert losses(two_ranks["sharded"]) == close(losses(two_ranks["whole"]))
    assert norms(two_ranks["sharded"]) == close(norms(two_ranks["whole"]))


def test_a_shape_of_today_trains_alike_whole_sharded_and_split(
    make_recipe: MakeRecipe, train_alone: TrainAlone, fork: Fork, tmp_path: Path
) -> None:
    """Two ranks share the matrices of each of two sharded copies."""
    heads = {"attention_heads": 4, "query_groups": 2, "head_size": 24, "query_key_norm": True, "feed_forward_size": 96}
    parts = {"activation": "swiglu", "norm": "rms_norm", "biases": "none", "tied_embeddings": False}
    model = {**heads, **parts, "positions": "rope", "rotary": {"base": 5e5, "scaling": {"positions": 64}}}
    alone = train_alone(make_recipe(model=model))
    spread = {2: SHARDED, 4: SHARDED | {"tensor": 2, "sequence": True}}
    for ranks, parallelism in spread.items():
        folder = tmp_path / f"of {ranks}"
        folder.mkdir()
        series = _run(fork, make_recipe(model=model, parallelism=parallelism), folder, ranks)
        assert losses(series) == close(losses(alone))
        assert losses(series)[-1] < losses(series)[0] - 0.8


def test_experts_train_alike(make_recipe: MakeRecipe, train_alone: TrainAlone, fork: Fork, tmp_path: Path) -> None:
    """Also in micro batches of one sequence each: the load of experts is that of a sequence."""
    experts = {"number": 5, "top_k": 2, "feed_forward_size": 32, "dense_layers": 1}
    model = {"activation": "swiglu", "norm": "rms_norm", "biases": "none", "experts": experts}
    alone = train_alone(make_recipe(model=model))
    for size, parallelism in ((1, SHARDED), (2, {"sharding": "gradients"}), (2, {})):
        folder = tmp_path / f"{size} {parallelism.get('sharding')}"
        folder.mkdir()
        series = _run(fork, make_recipe(model=model, parallelism=parallelism, micro_batch_size=size), folder)
        assert losses(series) == close(losses(alone))
        assert norms(series) == close(norms(alone))
        assert losses(series)[-1] < losses(series)[0] - 0.8


def test_two_runs_are_identical(make_recipe: MakeRecipe, train_alone: TrainAlone) -> None:
    """With dropout on, two runs of one recipe have bit for bit the same losses; another seed has others."""
    recipe = make_recipe(model={"dropout": 0.1})
    first = losses(train_alone(recipe))
    assert losses(train_alone(recipe)) == first
    assert losses(train_alone(make_recipe(model={"dropout": 0.1}, data={"kind": "synthetic", "seed": 2}))) != first


def test_accumulation_changes_no_number(make_recipe: MakeRecipe, train_alone: TrainAlone) -> None:
    at_once, in_parts = (train_alone(make_recipe(micro_batch_size=size)) for size in (8, 2))
    assert losses(at_once) == close(losses(in_parts))
    assert norms(at_once) == close(norms(in_parts))


def test_accumulation_is_the_same_when_sharded(two_ranks: dict[str, StepSeries]) -> None:
    """Gradients kept back between micro batches are all in the sharded sum, whether parameters stay whole or not."""
    for name in ("sharded_in_parts", "kept_in_parts"):
        assert losses(two_ranks[name]) == close(losses(two_ranks["whole"]))
        assert norms(two_ranks[name]) == close(norms(two_ranks["whole"]))


@pytest.mark.parametrize(("memory", "chosen"), [(None, ("none", 2)), (2**40, ("none", 8)), (2**20, ("full", 2))])
def test_what_fits_is_chosen_by_the_ranks(
    memory: float | None, chosen: tuple[str, int], make_recipe: MakeRecipe, train_alone: TrainAlone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Sequences at a time, and what was recomputed, are as counted; the losses are those of any other choice."""
    from pytest_llmbench.engines.torch.ranks import run  # noqa: PLC0415 - PyTorch takes seconds to import

    events: list[TrainingEvent] = []
    monkeypatch.setattr(run, "_least_memory", lambda _: memory)
    monkeypatch.setattr(StepLog, "training", lambda _, event: events.append(event))
    recipe = make_recipe(steps=6, parallelism={"activation_checkpointing": "auto"})
    series = train_alone(recipe)
    assert [(event.activation_checkpointing, event.micro_batch_size) for event in events] == [chosen]
    assert losses(series) == close(losses(train_alone(make_recipe(steps=6))))
    asked, topology = ENGINE.asks(recipe, Topology(nodes=1, gpus_per_node=1)), Topology(nodes=1, gpus_per_node=1)
    assert asked == {"activation_checkpointing": None, "micro_batch_size": Span(2, 8)}
    for counted, doubted in ((chosen[0], 0), ("partial", 1)):
        info = RankInfo(
            rank=0, host="h", pid=1, local_rank=0, device="cpu", versions={},
            training=replace(events[0], activation_checkpointing=counted),
        )  # fmt: skip
        assert len(list(ENGINE.doubts(recipe, topology, StepSeries(ranks=(info,))))) == doubted


def test_split_gradients_are_averaged_in_each_micro_batch(
    make_recipe: MakeRecipe, train_alone: TrainAlone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then each rank has them whole: 700 GB of a model of 175B."""
    from pytest_llmbench.engines.torch.ranks import run  # noqa: PLC0415 - PyTorch takes seconds to import

    asked: list[bool] = []

    def sync(_: object, *, enabled: bool, keep: bool) -> nullcontext[None]:
        asked.append(enabled)
        return nullcontext()

    monkeypatch.setattr(run, "gradient_sync", sync)
    for sharding in ("full", "gradients"):
        train_alone(make_recipe(micro_batch_size=4, steps=6, parallelism={"sharding": sharding}))
    assert asked == [True] * 12 + [False, True] * 6


def test_a_diverged_training_is_told_as_it_is(make_recipe: MakeRecipe, train_alone: TrainAlone) -> None:
    series = train_alone(make_recipe(optimizer={"learning_rate": 1e30, "warmup_steps": 0}))
    assert len(series.steps) == 12
    assert math.isnan(known(series.steps[-1].loss))
    assert math.isnan(known(series.steps[-1].grad_norm))
    assert series.unreadable == ()


def test_step_times_add_up_to_the_wall_clock(make_recipe: MakeRecipe, train_alone: TrainAlone) -> None:
    """The seconds of all steps leave no room between steps: they are most of the whole run, and not more."""
    start = time.perf_counter()
    series = train_alone(make_recipe(steps=100))
    wall_s = time.perf_counter() - start
    assert 0.5 * wall_s < sum(known(step.seconds) for step in series.steps) < wall_s


def test_phases_are_in_order(make_recipe: MakeRecipe, train_alone: TrainAlone, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with two micro batches passes through its phases twice, then through one optimizer phase."""
    seen: list[tuple[int, str, int]] = []

    def note(_: StepLog, step: int, name: str, micro_batch: int = 0) -> None:
        seen.append((step, name, micro_batch))

    monkeypatch.setattr(StepLog, "phase", note)
    train_alone(make_recipe(micro_batch_size=4))
    assert seen[:2] == [(0, "start", 0), (0, "matmul", 0)]
    assert [event[1:] for event in seen if event[0] == 12] == [
        ("data", 1), ("forward", 1), ("backward", 1),
        ("data", 2), ("forward", 2), ("backward", 2), ("sync", 2), ("optimizer", 0),
    ]  # fmt: skip
