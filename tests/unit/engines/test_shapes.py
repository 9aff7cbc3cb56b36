"""Shapes of models beyond OPT and GPT-3: which engine takes which key, and what a program is given for it."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Parallelism, Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Claim, Setting
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import ENGINES, Place, Script, asks_for_speed, get_engine, problems_of, shape_problems
from pytest_llmbench.judging.flops import all_layers
from pytest_llmbench.judging.references import Machine, applied
from pytest_llmbench.session.forecast import memory
from tests.conftest import known
from tests.support.published import MODELS
from tests.support.recipes import small_recipe
from tests.support.shipped import shipped_recipes

NODES = Topology(nodes=32, gpus_per_node=8)
LATENT = {"query_rank": 8, "key_value_rank": 8, "rotary_size": 4, "value_size": 8}
KEYS: Mapping[str, Any] = {
    "model.positions": "rope", "model.query_groups": 1, "model.head_size": 8, "model.feed_forward_size": 96,
    "model.activation": "swiglu", "model.norm": "rms_norm", "model.biases": "none", "model.tied_embeddings": False,
    "model.query_key_norm": True, "model.rotary": {"base": 5e5}, "model.window": {"size": 8},
    "model.latent_attention": LATENT, "model.experts": {"number": 4, "top_k": 2, "feed_forward_size": 16},
    "model.further_predictions": 1, "parallelism.context": 2, "parallelism.expert": 2,
}  # fmt: skip
NEEDED: Mapping[str, Any] = {"model.rotary": "model.positions", "model.latent_attention": "model.head_size",
                             "parallelism.expert": "model.experts"}  # fmt: skip


def test_each_key_beyond_a_plain_decoder_is_tried_here() -> None:
    plain = {"layers", "hidden_size", "attention_heads", "vocab_size", "dropout"}
    assert {key for key in KEYS if key.startswith("model.")} == {
        f"model.{key}" for key in {*ModelShape.model_fields} - plain
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("engine", sorted(ENGINES.usable()))
def test_a_key_that_an_engine_does_not_train_is_refused(engine: str, key: str) -> None:
    """No engine trains another model in silence; the message names engines that train this one."""
    changes: dict[str, dict[str, Any]] = {"model": {}, "parallelism": {}}
    for name in (key, NEEDED.get(key)):
        if name is not None:
            part, _, field = name.partition(".")
            changes[part][field] = KEYS[name]
    recipe = small_recipe({"engine": engine, **changes})
    said = [words for words in shape_problems(get_engine(engine), recipe, NODES) if f"cannot train {key}: " in words]
    assert bool(said) is (key not in get_engine(engine).shapes)
    assert all("megatron_lm" in words for words in said)


def given(recipe: Recipe) -> dict[str, str]:
    """Arguments of `pretrain_gpt.py` by name; a switch is `True`."""
    place = Place(folder=Path("run"), environment=Environment(root="/m"), slurm=False, time_limit_min=1)
    work = get_engine("megatron_lm").work(recipe, NODES, place)
    assert isinstance(work, Script)
    words = [*work.commands[0].argv, "--"]
    flags = [index for index, word in enumerate(words) if word.startswith("--")]
    return {words[one][2:]: " ".join(words[one + 1 : other]) or "True" for one, other in itertools.pairwise(flags)}


def published(name: str, **layout: int) -> Recipe:
    shape = next(model.shape for model in MODELS if model.name == name)
    recipe = small_recipe({"engine": "megatron_lm", "parallelism": layout})
    return recipe.model_copy(update={"name": name, "model": shape})


ARGUMENTS: Mapping[str, tuple[Recipe, Mapping[str, str]]] = {recipe.name: (recipe, wanted) for recipe, wanted in (
    (
        published("llama3.1-8b", context=2),
        {
            "group-query-attention": "True", "num-query-groups": "8", "swiglu": "True", "normalization": "RMSNorm",
            "ffn-hidden-size": "14336", "disable-bias-linear": "True", "position-embedding-type": "rope",
            "untie-embeddings-and-output-weights": "True", "context-parallel-size": "2",
        },
    ),
    (
        published("qwen3-30b-a3b", expert=8),
        {
            "kv-channels": "128", "num-experts": "128", "moe-router-topk": "8", "moe-ffn-hidden-size": "768",
            "qk-layernorm": "True", "expert-model-parallel-size": "8",
        },
    ),
    (
        published("deepseek-v3-mtp"),
        {
            "multi-latent-attention": "True", "q-lora-rank": "1536", "kv-lora-rank": "512", "qk-head-dim": "128",
            "qk-pos-emb-head-dim": "64", "v-head-dim": "128", "moe-layer-freq": "([0]*3+[1]*58)",
            "moe-shared-expert-intermediate-size": "2048", "mtp-num-layers": "1",
        },
    ),
    (published("gpt-oss-120b"), {"window-size": "127,0", "window-attn-skip-freq": "2"}),
    (published("qwen2.5-7b"), {"add-qkv-bias": "True", "disable-bias-linear": "True"}),
    (published("nemotron4-15b"), {"squared-relu": "True"}),
)}  # fmt: skip


@pytest.mark.parametrize(("recipe", "wanted"), ARGUMENTS.values(), ids=list(ARGUMENTS))
def test_megatron_lm_is_given_the_shape(recipe: Recipe, wanted: Mapping[str, str]) -> None:
    arguments = given(recipe)
    assert {name: arguments.get(name) for name in wanted} == wanted
    assert get_engine("megatron_lm").uncounted(recipe) is None


def test_a_plain_decoder_needs_no_further_arguments() -> None:
    names = {name for recipe, wanted in ARGUMENTS.values() for name in wanted} - {"position-embedding-type"}
    assert not names & given(small_recipe({"engine": "megatron_lm"})).keys()


@pytest.mark.parametrize(("recipe", "wanted"), ARGUMENTS.values(), ids=list(ARGUMENTS))
def test_what_megatron_lm_prints_of_a_shape_is_compared(recipe: Recipe, wanted: Mapping[str, str]) -> None:
    """Each printed setting agrees, in Megatron-LM's own notation, and none may be another."""
    engine, printed = get_engine("megatron_lm"), {"moe-layer-freq": str([0] * 3 + [1] * 58), "window-size": "(127, 0)"}

    def differ(values: Mapping[str, str]) -> tuple[str, ...]:
        settings = tuple(
            Setting(name=name.replace("-", "_"), value=value, where="log:1", compared=False)
            for name, value in values.items()
        )
        return engine.compare(recipe, NODES, StepSeries(settings=settings)).differ

    right = {name: printed.get(name, value) for name, value in wanted.items() if name != "disable-bias-linear"}
    assert differ(right) == ()
    for name, value in right.items():
        (words,) = differ({**right, name: {"True": "False"}.get(value, "3")})
        assert name.replace("-", "_") in words
        derived = name in {"ffn-hidden-size", "kv-channels", "moe-ffn-hidden-size", "num-query-groups"}
        assert bool(differ({**right, name: "None"})) is (name != "position-embedding-type" and not derived)


@pytest.mark.parametrize(("printed", "fault"), [
    ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, None),
    ({"fp8": "None", "fp8_recipe": "tensorwise"}, "says fp8 None"),
    ({"fp8": "hybrid", "fp8_recipe": "delayed"}, "says fp8_recipe delayed"),
    ({}, "prints no fp8"),
])  # fmt: skip
def test_a_log_of_an_fp8_training_says_so(printed: Mapping[str, str], fault: str | None) -> None:
    """A log in which products fell back to bf16, or that leaves the setting out, is of another training."""
    engine, recipe = get_engine("megatron_lm"), small_recipe({"engine": "megatron_lm", "precision": "fp8"})
    arguments = given(recipe)
    wanted = {"bf16": "True", "fp8-format": "hybrid", "fp8-recipe": "tensorwise"}
    assert {name: arguments.get(name) for name in wanted} == wanted
    settings = [Setting(name=name, value=value, where="log:1", compared=False) for name, value in printed.items()]
    claim = Claim(name="layers", value=2, where="log:1")
    differ = engine.compare(recipe, NODES, StepSeries(settings=tuple(settings), claims=(claim,))).differ
    assert [fault in words for words in differ if fault] == [True] * bool(fault)


@pytest.mark.parametrize("engine", ["megatron_core", "deepspeed", "metaseq", "nemo_torchrun"])
def test_an_engine_without_8_bits_refuses_them(engine: str) -> None:
    options = {"model_size": "125m"} if engine == "metaseq" else {}
    recipe = small_recipe({"engine": engine, "precision": "fp8", "options": options, "compile": False})
    assert any("precision fp8 is not one of" in words for words in get_engine(engine).problems(recipe, NODES))


TODAY = [
    recipe for recipe in shipped_recipes().values()
    if recipe.name.startswith(("llama31", "qwen3", "deepseek", "gpt_oss"))
]  # fmt: skip


@pytest.mark.parametrize("recipe", TODAY, ids=lambda recipe: recipe.name)
def test_a_shipped_recipe_of_today_has_the_published_shape(recipe: Recipe) -> None:
    """Widths of dense layers that a model with experts leaves out, and rotary bases, change no work."""
    left_out = {"feed_forward_size": bool(recipe.model.experts), "layers": "_slice" in recipe.name, "rotary": True}
    free = {key for key, left in left_out.items() if left}
    shapes = [model.shape.model_dump(exclude=free) for model in MODELS]
    assert recipe.model.model_dump(exclude=free) in shapes
    for reference in recipe.references:
        assert reference.statistic in {"tokens_per_s_per_gpu", "loss_drop", "matmul_fraction"}


# Rows of Megatron-Bridge: recipe, GPU, GPUs, tokens/s/gpu.
@pytest.mark.parametrize(("name", "gpu", "gpus", "rate"), [
    ("llama31_70b_fp8_h100", "H100", 64, 1664), ("llama31_405b_fp8_h100", "H100", 1024, 326),
    ("llama31_405b_mxfp8_gb300", "GB300", 256, 952), ("qwen3_30b_a3b_mxfp8_gb200", "B200", 8, 27136),
    ("qwen3_235b_a22b_mxfp8_gb300", "GB300", 256, 8816), ("deepseek_v3_mxfp8_b300", "B300", 256, 3541),
    ("gpt_oss_120b_b200", "B200", 64, 13568), ("llama31_8b", "H100", 64, 6514),
])  # fmt: skip
def test_a_published_rate_passes_and_six_percent_less_fails(name: str, gpu: str, gpus: int, rate: float) -> None:
    recipe = shipped_recipes()[name]
    machine = Machine(system="any", device=f"NVIDIA {gpu}", gpus=gpus, nodes=gpus // recipe.gpus_per_node, scale="full")
    (bound,) = (each for each in recipe.references
                if each.applies_to is not None and isinstance(applied(each, machine), Reference))  # fmt: skip
    assert Quantity(rate, "tokens/s/gpu") in bound
    assert Quantity(0.94 * rate, "tokens/s/gpu") not in bound


@pytest.mark.parametrize(
    "topology", [Topology(nodes=n, gpus_per_node=g) for n, g in ((1, 0), (1, 1), (1, 3), (5, 7))], ids=str
)
def test_whatever_the_number_of_ranks_a_recipe_runs_or_says_why_not(topology: Topology) -> None:
    for recipe in (*shipped_recipes().values(), *shipped_recipes("smoke").values()):
        assert all(problems_of(get_engine(recipe.engine), recipe.on(topology), topology))


REQUIRED: dict[str, dict[str, Any]] = {
    "metaseq": {"model_size": "125m"}, "nemo_launcher": {"version": "22.06", "training": "gpt3/126m"},
    "deepspeed_chat": {"step": 1}, "mlperf": {"benchmark": "x", "target": 1.0}, "torchtitan": {"flavor": "8B"},
}  # fmt: skip


@pytest.mark.parametrize("sharding", ["none", "optimizer", "gradients", "full"])
@pytest.mark.parametrize("how", ["none", "selective", "full", "auto"])
@pytest.mark.parametrize("name", sorted(ENGINES.usable()))
def test_a_plan_shows_every_layout_also_a_refused_one(name: str, how: str, sharding: str) -> None:
    engine, layout = get_engine(name), {"sharding": sharding, "activation_checkpointing": how}
    recipe = small_recipe({"engine": name, "options": REQUIRED.get(name, {}), "parallelism": layout}).on(NODES)
    problems = list(problems_of(engine, recipe, NODES))
    engine.footprint(recipe, NODES)
    engine.asks(recipe, NODES)
    refused = "cannot train parallelism.activation_checkpointing: auto; engine: torch can" in "".join(problems)
    assert refused is (how == "auto" and name != "torch")


def test_a_rate_of_nothing_asks_for_no_speed() -> None:
    bounds = ("0 words/s", "-5 words/s", "1 words/s")
    assert [asks_for_speed("throughput", "torch", ">=", Quantity(bound)) for bound in bounds] == [False, False, True]


def test_experts_are_whole_on_their_ranks() -> None:
    """Qwen3 235B on 256 H100 has 8 stages of 32 ranks, each with four whole experts of a layer."""
    recipe = shipped_recipes()["qwen3_235b_a22b_fp8_h100"]
    assert given(recipe)["expert-tensor-parallel-size"] == "1"
    engine, topology = get_engine("megatron_lm"), Topology(nodes=recipe.nodes, gpus_per_node=8)
    assert list(problems_of(engine, recipe, topology)) == []
    fewer = Topology(nodes=20, gpus_per_node=8)
    assert any("do not divide by pipeline 8 × expert 32" in words for words in problems_of(engine, recipe, fewer))
    experts = all_layers(recipe.model).experts / 8 / 32
    needed = known(memory(recipe, topology))
    assert needed.least / 2 > experts  # 2 bytes of each weight


def test_a_model_is_split_into_whole_experts_and_layers() -> None:
    """126 layers, embedding and output layer are 64 chunks of two; ranks of one sequence are one copy of the model."""
    arguments = given(shipped_recipes()["llama31_405b_fp8_h100"])
    assert arguments["num-layers-per-virtual-pipeline-stage"] == "2"
    assert arguments["account-for-embedding-in-pipeline-split"] == "True"
    recipe = published("qwen3-30b-a3b", expert=3)
    assert any(
        "parallelism.expert 3 does not divide 128" in words
        for words in shape_problems(get_engine("megatron_lm"), recipe, NODES)
    )
    assert Parallelism(tensor=2, pipeline=4, context=2, expert=8).model_parallel_size == 16
