"""Arguments of a framework over the recipe's own fields: they agree with them, are harmless, or are told apart."""

from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import get_engine
from tests.support.shipped import shipped_recipes

RECIPES = shipped_recipes()
SMOKE = shipped_recipes("smoke")
COMMANDS = ("megatron_lm", "metaseq", "nemo_launcher", "nemo_torchrun", "deepspeed_chat")


def on_its_nodes(recipe: Recipe) -> tuple[Recipe, Topology]:
    """A recipe on the nodes it was published for; a tiny one on two ranks."""
    full = recipe.scale == "full" or recipe.gpus_per_node
    topology = Topology(nodes=recipe.nodes if full else 1, gpus_per_node=recipe.gpus_per_node, cpu_ranks_per_node=2)
    return recipe.on(topology), topology


def problems(name: str, arguments: dict[str, Any], **changes: Any) -> list[str]:
    """Why a shipped recipe with these arguments over its own cannot run."""
    recipe = RECIPES[name]
    own = {**recipe.options.get("arguments", {}), **arguments}
    changed = recipe.model_copy(update={"options": {**recipe.options, "arguments": own}, **changes})
    on, topology = on_its_nodes(changed)
    return list(get_engine(recipe.engine).problems(on, topology))


def uncounted(name: str, arguments: dict[str, Any]) -> str | None:
    """Why the model's FLOPs are not known of a shipped recipe with these arguments."""
    recipe = RECIPES[name]
    own = {**recipe.options.get("arguments", {}), **arguments}
    return get_engine(recipe.engine).uncounted(
        recipe.model_copy(update={"options": {**recipe.options, "arguments": own}})
    )


@pytest.mark.parametrize("recipe", [each for each in RECIPES.values() if each.engine in COMMANDS], ids=lambda r: r.name)
def test_no_shipped_recipe_contradicts_itself(recipe: Recipe) -> None:
    """Each says one thing, and its FLOPs are known; but for DeepSpeed-Chat, and for layers by a pattern (Mamba)."""
    on, topology = on_its_nodes(recipe)
    engine = get_engine(recipe.engine)
    assert list(engine.problems(on, topology)) == []
    by_pattern = "hybrid-layer-pattern" in recipe.options.get("arguments", {})
    assert (engine.uncounted(on) is None) is (recipe.engine != "deepspeed_chat" and not by_pattern)


@pytest.mark.parametrize("name", [each.name for each in SMOKE.values() if each.engine in COMMANDS])
def test_no_tiny_recipe_contradicts_itself(name: str) -> None:
    on, topology = on_its_nodes(SMOKE[name])
    said = [each for each in get_engine(on.engine).problems(on, topology) if "options.arguments" in each]
    assert said == []


@pytest.mark.parametrize(("name", "argument", "value", "field"), [
    ("nlp13b", "num-layers", 2, "model.layers"),
    ("nlp13b", "encoder-num-layers", 2, "model.layers"),
    ("nlp13b", "hidden-size", 1024, "model.hidden_size"),
    ("nlp13b", "num-attention-heads", 64, "model.attention_heads"),
    ("nlp13b", "seq-length", 1024, "sequence_length"),
    ("nlp13b", "decoder-seq-length", 1024, "sequence_length"),
    ("nlp13b", "global-batch-size", 2048, "global_batch_size"),
    ("nlp13b", "micro-batch-size", 2, "micro_batch_size"),
    ("nlp13b", "tensor-model-parallel-size", 1, "parallelism.tensor"),
    ("nlp13b", "pipeline-model-parallel-size", "2", "parallelism.pipeline"),
    ("nlp13b", "sequence-parallel", False, "parallelism.sequence"),
    ("nlp13b", "use-distributed-optimizer", False, "parallelism.sharding"),
    ("nlp13b", "bf16", True, "precision"),
    ("nlp13b", "fp16", False, "precision"),
    ("nlp13b", "recompute-granularity", "full", "parallelism.activation_checkpointing"),
    ("nlp13b", "position-embedding-type", "learned_absolute", "model.positions"),
    ("nlp13b", "train-iters", 10, "steps"),
    ("nlp13b", "lr", 1.0, "optimizer.learning_rate"),
    ("nlp13b", "optimizer", "sgd", "optimizer"),
    ("nlp13b", "attention-dropout", False, "model.dropout"),
    ("nlp13b", "vocab-size", 1000, "model.vocab_size"),
    ("azure_gpt3_126m", "training.model.num_layers", 2, "model.layers"),
    ("azure_gpt3_126m", "++training.model.num_layers", 2, "model.layers"),
    ("azure_gpt3_126m", "training.model.encoder_seq_length", 512, "sequence_length"),
    ("azure_gpt3_126m", "training.model.data.seq_length", 512, "sequence_length"),
    ("azure_gpt3_126m", "training.model.global_batch_size", 8, "global_batch_size"),
    ("azure_gpt3_126m", "training.trainer.precision", 16, "precision"),
    ("azure_gpt3_126m", "training.trainer.max_steps", 20, "steps"),
    ("aws_torchrun_gpt3_5b", "model.hidden_size", 1024, "model.hidden_size"),
    ("aws_torchrun_gpt3_5b", "model.tensor_model_parallel_size", 8, "parallelism.tensor"),
    ("aws_torchrun_gpt3_5b", "model.optim.name", "fused_adam", "parallelism.sharding"),
    ("metaseq125m", "fp16", False, "precision"),
    ("metaseq125m", "ddp-backend", "pytorch_ddp", "parallelism.sharding"),
    ("chat_350m_bs24_zero0", "max_seq_len", 256, "sequence_length"),
    ("chat_350m_bs24_zero0", "zero_stage", 3, "parallelism.sharding"),
    ("chat_350m_bs24_zero0", "per_device_train_batch_size", 4, "micro_batch_size"),
    ("chat_350m_bs24_zero0", "gradient_checkpointing", True, "parallelism.activation_checkpointing"),
    ("chat_350m_bs24_zero0", "dtype", "bf16", "precision"),
])  # fmt: skip
def test_an_argument_that_contradicts_a_field_is_refused(name: str, argument: str, value: object, field: str) -> None:
    """The message names the argument, the field, and what the recipe asks for."""
    found = problems(name, {argument: value})
    assert len(found) == 1, found
    plain = argument.removeprefix("++").removeprefix("training.")
    assert f"options.arguments: {plain}: {value} contradicts {field} of the recipe" in found[0]


@pytest.mark.parametrize(("name", "argument", "value"), [
    ("nlp13b", "rampup-batch-size", "16 16 1000"), ("nlp13b", "iterations-to-skip", 3),
    ("nlp13b", "skip-train", True), ("nlp13b", "fp8-format", "hybrid"),
    ("azure_gpt3_126m", "training.model.rampup_batch_size", (32, 32, 1000)),
    ("azure_gpt3_126m", "training.trainer.accumulate_grad_batches", 2), ("metaseq125m", "max-tokens", 4096),
])  # fmt: skip
def test_an_argument_that_changes_the_work_is_refused(name: str, argument: str, value: object) -> None:
    (found,) = problems(name, {argument: value})
    assert "which no key of a recipe can express: leave it out" in found


@pytest.mark.parametrize(("name", "argument", "value"), [
    ("nlp13b", "swiglu", True), ("nlp13b", "group-query-attention", True), ("nlp13b", "ffn-hidden-size", 13824),
    ("nlp13b", "num-experts", 8), ("nlp13b", "an-argument-of-next-year", 1),
    ("azure_gpt3_126m", "training.model.ffn_hidden_size", 2048),
    ("azure_gpt3_126m", "training.model.activation", "swiglu"), ("metaseq125m", "decoder-ffn-embed-dim", 64),
    ("metaseq125m", "moe-freq", 2),
])  # fmt: skip
def test_what_may_change_a_step_is_not_counted(name: str, argument: str, value: object) -> None:
    """An unknown argument is not taken for harmless: the run has no number that counts FLOPs."""
    assert problems(name, {argument: value}) == []
    assert uncounted(name, {}) is None
    why = uncounted(name, {argument: value})
    assert why is not None
    assert argument.removeprefix("training.") in why


@pytest.mark.parametrize(("name", "arguments"), [
    ("nlp13b", {"num-layers": 40, "seq-length": "2048", "lr": 1.0e-4, "fp16": True, "sequence-parallel": True}),
    ("nlp13b", {"log-interval": 1, "tokenizer-type": "NullTokenizer", "seed": 1, "swiglu": False}),
    ("azure_gpt3_126m", {"training.model.num_layers": 12, "training.trainer.precision": "bf16"}),
    ("metaseq125m", {"fp16": True, "no-wandb": False}),
])  # fmt: skip
def test_what_agrees_or_does_no_harm_is_taken(name: str, arguments: dict[str, Any]) -> None:
    assert problems(name, arguments) == []
    assert uncounted(name, arguments) is None


def test_the_launcher_trains_the_model_that_the_recipe_describes() -> None:
    recipe = RECIPES["metaseq125m"]
    (found,) = problems("metaseq125m", {}, options={**recipe.options, "model_size": "350m"})
    assert "options.model_size 350m has layers 24, hidden_size 1024" in found
