"""The recipes and systems that come with the package, against what is published."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.gpus import published
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe, Scale
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.base import get_engine, on_machine, statistics_of
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.interval.steady import LEAST
from pytest_llmbench.judging.references import Machine
from tests.support.shipped import SCALES, shipped_recipes

RECIPES: dict[Scale, Mapping[str, Recipe]] = {scale: shipped_recipes(scale) for scale in SCALES}
SYSTEM_FILES = sorted(shipped("systems").glob("*.yaml"))

# layers, hidden size, heads, tokens per batch, peak learning rate: metaseq at commit a1a4e733 (2022-08-09),
# metaseq/launcher/opt_baselines.py, which follows table 1 of Zhang et al. 2022, "OPT: Open Pre-trained
# Transformer Language Models", arXiv:2205.01068. Parameters are what the name says; 350m is the paper's 355M
# and 2.7b its 2.65B.
PUBLISHED = {
    "opt125m": (125e6, 12, 768, 12, 524_288, 6e-4), "opt350m": (355e6, 24, 1024, 16, 524_288, 3e-4),
    "opt760m": (760e6, 24, 1536, 16, 524_288, 2.5e-4), "opt1.3b": (1.3e9, 24, 2048, 32, 1_048_576, 2e-4),
    "opt2.7b": (2.65e9, 32, 2560, 32, 1_048_576, 1.6e-4), "opt6.7b": (6.7e9, 32, 4096, 32, 2_097_152, 1.2e-4),
    "opt13b": (13e9, 40, 5120, 40, 4_194_304, 1e-4), "opt30b": (30e9, 48, 7168, 56, 4_194_304, 1e-4),
    "opt66b": (66e9, 64, 9216, 72, 2_097_152, 8e-5), "opt175b": (175e9, 96, 12288, 96, 2_097_152, 3e-5),
}  # fmt: skip


def test_every_published_size_is_there() -> None:
    assert PUBLISHED.keys() <= RECIPES["full"].keys()
    assert RECIPES["full"].keys() == RECIPES["smoke"].keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_size_is_the_published_one(name: str) -> None:
    """Shape, tokens per batch and learning rate are those published; the parameters fit the name within 2 %."""
    recipe = RECIPES["full"][name]
    size, layers, hidden, heads, tokens, learning_rate = PUBLISHED[name]
    assert (recipe.model.layers, recipe.model.hidden_size, recipe.model.attention_heads) == (layers, hidden, heads)
    assert (recipe.tokens_per_step, recipe.optimizer.learning_rate) == (tokens, learning_rate)
    assert parameters(recipe.model, recipe.sequence_length) == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_all_sizes_share_is_published_too(name: str) -> None:
    """Sequence, vocabulary and AdamW's settings are those of the benchmark mode there; steps are, or twice as many."""
    recipe = RECIPES["full"][name]
    assert (recipe.sequence_length, recipe.model.vocab_size, recipe.model.dropout) == (2048, 51196, 0.1)
    assert recipe.steps == (50 if PUBLISHED[name][0] > 5e9 else 100)
    optimizer = recipe.optimizer
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.95), 1e-8, 0.1)
    assert (optimizer.clip_grad_norm, optimizer.warmup_steps) == (1.0, 50)


@pytest.mark.parametrize("name", RECIPES["full"])
def test_a_recipe_runs_where_it_says(name: str) -> None:
    full, smoke = RECIPES["full"][name], RECIPES["smoke"][name]
    engine = get_engine(full.engine)
    published = Topology(nodes=full.nodes, gpus_per_node=full.gpus_per_node)
    assert list(engine.problems(full.on(published), published)) == []
    cpus = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
    assert list(engine.problems(smoke.on(cpus), cpus)) == []


@pytest.mark.parametrize("name", RECIPES["full"])
def test_a_recipe_reaches_the_ranks_as_it_is(name: str) -> None:
    for scale in SCALES:
        recipe = RECIPES[scale][name]
        assert validate(Recipe, recipe.model_dump(mode="json"), name) == recipe


@pytest.mark.parametrize("name", RECIPES["full"])
def test_a_reference_bounds_a_statistic_in_its_own_kind_of_unit(name: str) -> None:
    """Every reference names a known statistic, and its bounds can be compared with what is measured."""
    for reference in RECIPES["full"][name].references:
        unit = statistics_of(get_engine(RECIPES["full"][name].engine))[reference.statistic].unit
        for _, bound in reference.bounds:
            assert bound.dimension == Quantity(0, unit).dimension
        assert reference.why
        assert reference.source


def test_200k_words_per_second_is_for_one_size_on_one_machine() -> None:
    """The Azure number is for the full OPT-125m on one node of 8 A100-80GB; 175b has it to say what it would take."""
    found = {
        recipe.name: reference
        for recipe in RECIPES["full"].values()
        for reference in recipe.references
        if recipe.engine == "torch" and any(bound.dimension == "token rate" for _, bound in reference.bounds)
    }
    assert set(found) == {"opt125m", "opt175b"}
    assert "125m" in found["opt175b"].why
    reference = found["opt125m"]
    assert reference.bounds == [(">=", Quantity("200K words/s"))]
    machine = Machine(system="any", device="NVIDIA A100-SXM4-80GB", gpus=8, nodes=1, scale="full")
    opt125m = RECIPES["full"]["opt125m"]
    assert on_machine(reference, opt125m, machine) == reference
    better = on_machine(reference, opt125m, Machine(system="a", device="NVIDIA H200", gpus=8, nodes=1, scale="full"))
    assert isinstance(better, Reference)
    assert (better.floor, better.bounds) == (True, reference.bounds)
    others = [
        Machine(system="any", device="NVIDIA A100-SXM4-40GB", gpus=8, nodes=1, scale="full"),
        Machine(system="any", device="NVIDIA A100-SXM4-80GB", gpus=4, nodes=1, scale="full"),
        Machine(system="any", device="NVIDIA A100-SXM4-80GB", gpus=8, nodes=2, scale="full"),
        Machine(system="any", device="NVIDIA A100-SXM4-80GB", gpus=8, nodes=1, scale="smoke"),
        Machine(system="any", device="cpu", gpus=0, nodes=1, scale="full"),
    ]
    assert all(isinstance(on_machine(reference, opt125m, other), str) for other in others)


# Our runs on H200 (docs/measurements): tokens/s, and on how many GPUs.
ON_H200 = [
    ("opt125m", 456_004, 1), ("opt125m", 901_891, 2), ("opt125m", 1_798_201, 4), ("opt1.3b", 59_519, 1),
    ("mcore_1.3b_tensor2", 76_009, 2), ("mcore_1.3b_pipeline2", 78_725, 2), ("mcore_1.3b_interleaved", 80_836, 2),
    ("mcore_175b_slice", 37_978, 4), ("ds_sft_350m", 248.9 * 512, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tokens_per_s", "gpus"), ON_H200)
def test_a_bound_of_h200_can_be_met_and_missed(name: str, tokens_per_s: float, gpus: int) -> None:
    """Our own run meets it, one that is 20 % slower does not, nor does one twice as fast."""
    machine = Machine(system="any", device="NVIDIA H200", gpus=gpus, nodes=1, scale="full")
    (bound,) = (
        reference for reference in RECIPES["full"][name].references
        if reference.statistic == "tokens_per_s_per_gpu"
        and on_machine(reference, RECIPES["full"][name], machine) == reference
    )  # fmt: skip
    measured = Quantity(tokens_per_s / gpus, "tokens/s/gpu")
    assert measured in bound
    assert Quantity(0.8 * measured.value, measured.unit) not in bound
    assert Quantity(2 * measured.value, measured.unit) not in bound
    several = Machine(system="any", device="NVIDIA H200", gpus=16, nodes=2, scale="full")
    assert isinstance(on_machine(bound, RECIPES["full"][name], several), str)


@pytest.mark.parametrize("name", RECIPES["full"])
def test_a_recipe_with_a_bound_on_speed_has_steps_enough(name: str) -> None:
    recipe = RECIPES["full"][name]
    rules = statistics_of(get_engine(recipe.engine))
    if any(rules[reference.statistic].steady for reference in recipe.references):
        assert recipe.end == "time_limit" or recipe.steps - recipe.warm_up.steps >= LEAST


def test_there_are_systems() -> None:
    assert {"ND96amsr_A100_v4", "p4de.24xlarge", "JUWELS_Booster"} <= {
        load_system(str(path), []).name for path in SYSTEM_FILES
    }


@pytest.mark.parametrize("path", SYSTEM_FILES, ids=lambda path: path.stem)
def test_a_system_is_whole(path: Path) -> None:
    system = load_system(str(path), [])
    assert system.name.lower() == path.stem.lower()
    assert load_system(system.name, [path.parent]) == system
    assert system.gpus_per_node
    assert system.gpu is not None
    assert not system.gpu.model.startswith("NVIDIA")
    sheet = published(system.gpu.model)
    assert sheet is not None
    assert (system.gpu.memory_gib, system.gpu.peak_tflops) == (sheet.memory_gib, sheet.peak_tflops)
    assert system.gpu.source
    assert system.source
