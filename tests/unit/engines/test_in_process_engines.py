"""Engines torch, megatron_core and deepspeed: what they refuse and what they hand to the ranks."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines import in_process
from pytest_llmbench.engines.base import Place, RankTask, get_engine, problems_of
from tests.support.recipes import small_recipe

NODE = Topology(nodes=1, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
EVERYTHING = {
    "tensor": 2, "sequence": True, "pipeline": 2, "virtual_pipeline": 2, "sharding": "optimizer",
    "activation_checkpointing": "full",
}  # fmt: skip
MIXTURE = {"biases": "none", "experts": {"number": 4, "top_k": 2, "feed_forward_size": 16}}
OF_ENGINES: dict[str, dict[str, Any]] = {
    "torch": {}, "megatron_core": {"model": {"layers": 4, "attention_heads": 4}}, "deepspeed": {"compile": False},
}  # fmt: skip


def recipe(engine: str, **changes: Any) -> Recipe:
    shape = {"engine": engine, "global_batch_size": 192, "micro_batch_size": 2, **OF_ENGINES[engine]}
    return small_recipe(shape, changes)


def problems(engine: str, topology: Topology = NODE, **changes: Any) -> list[str]:
    return list(problems_of(get_engine(engine), recipe(engine, **changes), topology))


def handed_over(asked: Recipe) -> RankTask:
    place = Place(folder=Path("run"), environment=Environment(), slurm=False, time_limit_min=1)
    task = get_engine(asked.engine).work(asked, NODE, place)
    assert isinstance(task, RankTask)
    return task


def test_they_are_found_by_name_without_importing_what_they_run() -> None:
    assert [get_engine(engine).name for engine in OF_ENGINES] == [*OF_ENGINES]
    code = (
        "import sys; from pytest_llmbench.engines.base import get_engine; import pytest_llmbench.workloads.rank.main; "
        f"[get_engine(engine).missing() for engine in {[*OF_ENGINES]}]; "
        "sys.exit(bool({'torch', 'deepspeed', 'transformers', 'megatron.core'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("engine", "lost", "name", "extra"), [
    ("torch", "torch", "PyTorch", "torch"),
    ("megatron_core", "megatron.core", "Megatron-Core", "megatron"),
    ("deepspeed", "deepspeed", "DeepSpeed", "deepspeed"),
])  # fmt: skip
def test_a_missing_framework_is_said_with_the_cure(
    engine: str, lost: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "find_spec", lambda module: None if module == lost else module)
    assert get_engine(engine).missing() == f"engine {engine} needs {name}: pip install 'pytest-llmbench[{extra}]'"


def test_torchao_is_missing_for_8_bits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "find_spec", lambda module: None if module == "torchao" else module)
    engine, words = (
        get_engine("torch"),
        "engine torch needs torchao for precision fp8: pip install 'pytest-llmbench[fp8]'",
    )
    asked = (None, recipe("torch"), recipe("torch", precision="fp8"))
    assert [engine.missing(each) for each in asked] == [None, None, words]


@pytest.mark.parametrize(("changes", "odd"), [
    ({}, None),
    ({"micro_batch_size": 1, "sequence_length": 24}, "16, unlike micro_batch_size × sequence_length 24"),
    ({"model": {"feed_forward_size": 100}}, "unlike model.feed_forward_size 100"),
    ({"model": {"hidden_size": 72, "attention_heads": 9}}, "unlike model.hidden_size 72, "),
])  # fmt: skip
def test_a_gpu_multiplies_whole_tiles_in_8_bits(changes: dict[str, Any], odd: str | None) -> None:
    found = [words for words in problems("torch", precision="fp8", **changes) if "precision fp8" in words]
    assert bool(found) == (odd is not None)
    if odd is not None:
        assert odd in found[0]


@pytest.mark.parametrize("engine", [*OF_ENGINES])
def test_engine_torch_alone_chooses_what_is_recomputed(engine: str) -> None:
    found = [words for words in problems(engine, parallelism={"activation_checkpointing": "auto"}) if "auto" in words]
    assert bool(found) == (engine != "torch")
    if found:
        assert "cannot train parallelism.activation_checkpointing: auto; engine: torch can" in found[0]


@pytest.mark.parametrize(("engine", "changes"), [
    ("torch", {}),
    ("megatron_core", {}),
    ("megatron_core", {"parallelism": EVERYTHING}),
    ("megatron_core", {"precision": "fp16", "options": {"loss_scale": 64.0}}),
    ("megatron_core", {"parallelism": {"activation_checkpointing": "selective"},
                       "options": {"transformer_impl": "local", "attention": "unfused"}}),
    ("megatron_core", {"parallelism": {"tensor": 2}, "model": {"vocab_size": 51197}}),
    ("megatron_core", {"options": {"transformer_impl": "transformer_engine"}}),
    ("megatron_core", {"options": {"transformer_impl": "local", "attention": "flash"}}),
    ("megatron_core", {"model": {"positions": "rope"}}),
])  # fmt: skip
def test_a_recipe_that_fits_has_no_problems(engine: str, changes: dict[str, Any]) -> None:
    assert problems(engine, **changes) == []


@pytest.mark.parametrize(("precision", "sharding"), [
    *itertools.product(("fp32", "bf16"), ("none", "optimizer", "gradients", "full")),
    *itertools.product(("fp16",), ("optimizer", "gradients", "full")),
])  # fmt: skip
def test_stages_of_zero_run_in_every_precision(sharding: str, precision: str) -> None:
    parallelism = {"sharding": sharding, "activation_checkpointing": "full"}
    assert problems("deepspeed", parallelism=parallelism, precision=precision) == []
    on_cpus = problems("deepspeed", CPUS, parallelism=parallelism, precision=precision)
    assert (on_cpus == []) == (precision == "fp32")


@pytest.mark.parametrize(("engine", "parallelism"), [("torch", {}), ("megatron_core", {"tensor": 2})])
def test_cpu_ranks_train_in_fp32(engine: str, parallelism: dict[str, Any]) -> None:
    assert problems(engine, CPUS, precision="fp32", parallelism=parallelism) == []
    (problem,) = problems(engine, CPUS)
    assert problem == (
        "recipe small: precision bf16 needs GPUs; this run has none: pass --scale smoke for the tiny CPU variant, "
        "or --gpus-per-node"
    )


FIVE_NODES = Topology(nodes=5, gpus_per_node=8)


@pytest.mark.parametrize(("engine", "topology", "changes", "words"), [
    (
        "torch", FIVE_NODES, {},
        "; it does on 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96 ranks: give --nodes 4 or --nodes 6",
    ),
    ("torch", NODE, {"micro_batch_size": 5}, "it does on no number of ranks: change a batch size"),
    (  # Ranks that hold one copy together train on the same sequences: 8 of them on tensor 2 are 4 copies.
        "megatron_core", NODE, {"global_batch_size": 12, "parallelism": {"tensor": 2}},
        f"micro batches of 2 on 4 copies of the model ({NODE}); it does on 1, 2, 3, 6 copies of the model",
    ),
    ("deepspeed", NODE, {"micro_batch_size": 5}, "it does on no number of ranks: change a batch size"),
])  # fmt: skip
def test_a_batch_that_does_not_divide_lists_the_numbers_that_do(
    engine: str, topology: Topology, changes: dict[str, Any], words: str
) -> None:
    (problem,) = problems(engine, topology, **changes)
    assert problem.startswith("recipe small: a global batch of")
    assert problem.endswith(words)


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "ranks": (
        {"parallelism": {"tensor": 4, "pipeline": 4}},
        "8 ranks (1 node × 8 GPUs) do not divide into copies of the model on tensor 4 × pipeline 4 = 16 ranks",
    ),
    "no_pipeline": (
        {"parallelism": {"virtual_pipeline": 2}},
        "virtual_pipeline 2 interleaves the stages of a pipeline; there is one stage",
    ),
    "no_tensor": (
        {"parallelism": {"sequence": True}},
        "sequence splits the sequence over the ranks of tensor; there is one: set sequence: false",
    ),
    "heads": (
        {"parallelism": {"tensor": 8}, "model": {"hidden_size": 64}}, "attention_heads 4 does not divide by tensor 8",
    ),
    "sequence": (
        {"parallelism": {"tensor": 4, "sequence": True}, "sequence_length": 30},
        "sequence_length 30 does not divide by tensor 4",
    ),
    "layers": ({"parallelism": {"pipeline": 8}}, "4 layers do not divide by pipeline 8"),
    "chunks_of_layers": (
        {"parallelism": {"pipeline": 2, "virtual_pipeline": 4}},
        "4 layers do not divide by pipeline 2 × virtual_pipeline 4",
    ),
    "micro_batches": (
        {"global_batch_size": 24, "parallelism": {"pipeline": 2, "virtual_pipeline": 2}},
        ("the interleaved schedule needs a multiple of pipeline 2 micro batches per step; there are 3 on 4 copies "
        "of the model"),
    ),
    "sharding": (
        {"parallelism": {"sharding": "full"}},
        ("engine megatron_core shards none or optimizer, not full: set optimizer, or spread the model by tensor "
        "and pipeline; engine torch shards full"),
    ),
    "decay": ({"optimizer": {"decay": "cosine"}}, "engine megatron_core decays the learning rate linearly only"),
    "selective": (
        {"parallelism": {"activation_checkpointing": "selective"}},
        ("selective checkpointing recomputes the attention, which fused kernels do by themselves: set "
        "activation_checkpointing: none, or options: {transformer_impl: local, attention: unfused}"),
    ),
    "attention": (
        {"options": {"attention": "unfused"}},
        "options.attention: unfused is for Megatron-Core's local layers: set options.transformer_impl: local",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_layout_that_cannot_be_is_refused(name: str) -> None:
    """The one problem names the numbers involved, and what to write instead if there is a choice."""
    changes, problem = IMPOSSIBLE[name]
    assert problems("megatron_core", **changes) == [f"recipe small: {problem}"]


def test_transformer_engine_needs_gpus() -> None:
    asked = {"precision": "fp32", "options": {"transformer_impl": "transformer_engine"}}
    assert problems("megatron_core", CPUS, **asked) == [
        "recipe small: options.transformer_impl: transformer_engine needs GPUs; local is for all"
    ]


@pytest.mark.parametrize(("engine", "changes", "words"), [
    ("torch", {"parallelism": {"pipeline": 2}}, "has no pipeline parallelism; engine megatron_core has"),
    ("torch", {"parallelism": {"tensor": 2}}, "splits the sequence with the matrices: set sequence: true"),
    ("torch", {"parallelism": {"sequence": True}}, "splits the sequence with the matrices: set sequence: false"),
    ("torch", {"parallelism": {"tensor": 3, "sequence": True}}, "indivisible by tensor 3"),
    ("torch", {"parallelism": {"tensor": 2, "sequence": True}},
     "have copies of what tensor 2 ranks share: set sharding: gradients or full"),
    ("torch", {"model": {**MIXTURE, "biases": "all"}}, "experts of engine torch have no biases"),
    ("torch", {"model": MIXTURE, "parallelism": {"tensor": 2, "sequence": True}}, "does not split experts"),
    ("torch", {"model": MIXTURE, "parallelism": {"expert": 2}}, "cannot train parallelism.expert: 2; engine: "),
    ("torch", {"model": MIXTURE, "precision": "fp8"}, "multiplies experts in bf16 alone: set precision: bf16"),
    ("torch", {"model": MIXTURE, "precision": "fp32"}, "set precision: bf16 or compile: false"),
    ("torch", {"model": {**MIXTURE, "experts": {"number": 4, "top_k": 2, "feed_forward_size": 20}}},
     "products of experts need multiples of 8, unlike model.experts.feed_forward_size 20"),
    ("torch", {"parallelism": {"sharding": "optimizer"}},
     "shards none, gradients or full, not the optimizer alone"),
    ("torch", {"parallelism": {"activation_checkpointing": "selective"}},
     "checkpoints none or full, not selective"),
    ("torch", {"model": {"window": {"size": 4}}}, "cannot train model.window: ...; engine: megatron_lm can"),
    ("torch", {"optimizer": {"decay": "cosine"}}, "decays the learning rate linearly only"),
    ("torch", {"precision": "fp16"}, "precision fp16 is not one of fp32, bf16"),
    ("deepspeed", {"parallelism": {"tensor": 2}}, "has no tensor parallelism; engine megatron_core has"),
    ("deepspeed", {"parallelism": {"pipeline": 2}}, "has no pipeline parallelism"),
    ("deepspeed", {"parallelism": {"activation_checkpointing": "selective"}},
     "checkpoints none or full, not selective"),
    ("deepspeed", {"optimizer": {"decay": "cosine"}}, "decays the learning rate linearly only"),
    ("deepspeed", {"precision": "fp16"}, "in fp16 without scaling their loss: take bf16, or sharding: optimizer"),
    ("deepspeed", {"compile": True, "parallelism": {"sharding": "full"}},
     "cannot compile a layer whose weights come and go"),
    ("deepspeed", {"model": {"positions": "rope"}}, "cannot train model.positions: rope; engine: megatron_core"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused(engine: str, changes: dict[str, Any], words: str) -> None:
    found = problems(engine, **changes)
    assert any(words in problem for problem in found)
    assert all(problem.startswith("recipe small") for problem in found)


@pytest.mark.parametrize(("engine", "changes"), [
    ("torch", {"data": {"kind": "token_file", "path": "/data/tokens.bin"}}),
    ("megatron_core", {"parallelism": EVERYTHING, "options": {"attention": "math"}}),
    ("deepspeed", {"options": {"loss_scale": 64.0}}),
])  # fmt: skip
def test_the_task_carries_the_whole_recipe(engine: str, changes: dict[str, Any]) -> None:
    asked = recipe(engine, **changes)
    task = handed_over(asked)
    assert validate(Recipe, task.config, "task") == asked


@pytest.mark.parametrize(("tensor", "env"), [(1, {}), (2, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})])
def test_the_gpu_keeps_the_order_of_work_if_tensor_parallel_ranks_communicate(tensor: int, env: dict[str, str]) -> None:
    """If ranks share products, what they send hides behind the next one only if it is started first."""
    assert handed_over(recipe("megatron_core", parallelism={"tensor": tensor})).env == env


def test_a_run_that_logged_nothing_is_an_empty_series(tmp_path: Path) -> None:
    series = get_engine("torch").read(tmp_path / "not_yet", recipe("torch"))
    assert (series.ranks, series.steps, series.unreadable) == ((), (), ())
