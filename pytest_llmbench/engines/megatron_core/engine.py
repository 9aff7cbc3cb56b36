"""Megatron-Core: its GPTModel in tensor, sequence and pipeline parallel, trained by `ranks.run` on every rank."""

from collections.abc import Iterator, Mapping

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE, RotaryScaling
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Expected
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.base import options_of
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.megatron_core.options import MegatronCoreOptions, padded_vocabulary
from pytest_llmbench.engines.overrides import batch_problem, precision_problem
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of
from pytest_llmbench.judging.memory import Footprint, State


class MegatronCoreEngine(InProcess):
    """See `base.Engine`."""

    name = "megatron_core"
    entry = "pytest_llmbench.engines.megatron_core.ranks.run:train"
    packages = {"torch": "PyTorch", "megatron.core": "Megatron-Core"}  # noqa: RUF012 - nobody writes to it
    extra = "megatron"
    options: type[Strict] = MegatronCoreOptions
    ends_early = True
    shapes = DENSE

    def env(self, recipe: Recipe) -> Mapping[str, str]:
        """Have the GPU start kernels in the order of their launch, where tensor-parallel ranks communicate.

        Messages of a backward pass overlap the next product only then. Other layouts overlap better without it.
        """
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if recipe.parallelism.tensor > 1 else {}

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        # All ranks log the mean loss of all copies of the model.
        model = recipe.model
        rows = padded_vocabulary(model.vocab_size, recipe.parallelism.tensor) - model.vocab_size
        tables = 1 if model.tied_embeddings else 2
        number = parameters(model, recipe.sequence_length) + tables * rows * model.hidden_size
        return expected_of(recipe, topology, parameters=number, initial_std=0.006, own_losses=False)

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint:
        # Gradients are fp32. Of 16-bit weights, the optimizer has copies in fp32.
        weights, optimizer = (4, 8) if recipe.precision == "fp32" else (2, 12)
        sharded = recipe.parallelism.sharding == "optimizer"
        state = State(weights + 4, optimizer) if sharded else State(weights + 4 + optimizer)
        return Footprint(least=state, usual=state, activation=28 + 2 * bool(recipe.model.dropout), logit=6)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        layout = list(_layout_problems(recipe, topology))
        yield from layout
        if not layout:
            yield from batch_problem(recipe, topology)
            yield from _schedule(recipe, topology)
        yield from precision_problem(recipe, topology, ("fp32", "bf16", "fp16"))
        yield from _unsupported(recipe, topology, options_of(recipe, MegatronCoreOptions))


def _layout_problems(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield each reason why the layout is wrong for the model: sizes that leave a remainder, or nothing to split."""
    layout, model = recipe.parallelism, recipe.model
    if topology.world_size % layout.model_parallel_size:
        yield (
            f"{topology.world_size} ranks ({topology}) do not divide into copies of the model on tensor "
            f"{layout.tensor} × pipeline {layout.pipeline} = {layout.model_parallel_size} ranks"
        )
    if layout.virtual_pipeline > 1 and layout.pipeline == 1:
        yield f"virtual_pipeline {layout.virtual_pipeline} interleaves the stages of a pipeline; there is one stage"
    if layout.sequence and layout.tensor == 1:
        yield "sequence splits the sequence over the ranks of tensor; there is one: set sequence: false"
    shared = {"attention_heads": model.attention_heads}
    if model.query_groups is not None:
        shared["query_groups"] = model.query_groups
    if layout.sequence:
        shared["sequence_length"] = recipe.sequence_length
    for what, number in shared.items():
        if number % layout.tensor:
            yield f"{what} {number} does not divide by tensor {layout.tensor}"
    if model.layers % (layout.pipeline * layout.virtual_pipeline):
        chunks = f" × virtual_pipeline {layout.virtual_pipeline}" if layout.virtual_pipeline > 1 else ""
        yield f"{model.layers} layers do not divide by pipeline {layout.pipeline}{chunks}"


def _schedule(recipe: Recipe, topology: Topology) -> Iterator[str]:
    layout = recipe.parallelism
    copies = topology.world_size // layout.model_parallel_size
    micro_batches = recipe.samples_per_step // (copies * recipe.micro_batch_size)
    if layout.virtual_pipeline > 1 and micro_batches % layout.pipeline:
        yield (
            f"the interleaved schedule needs a multiple of pipeline {layout.pipeline} micro batches per step; "
            f"there are {micro_batches} on {copies} copies of the model"
        )


def _unsupported(recipe: Recipe, topology: Topology, options: MegatronCoreOptions) -> Iterator[str]:
    if recipe.parallelism.sharding in {"gradients", "full"}:
        yield (
            f"engine megatron_core shards none or optimizer, not {recipe.parallelism.sharding}: set optimizer, or "
            "spread the model by tensor and pipeline; engine torch shards full"
        )
    scaling = recipe.model.rotary.scaling
    if scaling is not None and scaling != RotaryScaling(factor=scaling.factor):
        yield "Megatron-Core stretches rotary positions with low 1, high 4 and positions 8192 only"
    if recipe.optimizer.decay != "linear":
        yield "engine megatron_core decays the learning rate linearly only"
    if recipe.parallelism.activation_checkpointing == "selective" and options.attention != "unfused":
        yield (
            "selective checkpointing recomputes the attention, which fused kernels do by themselves: set "
            "activation_checkpointing: none, or options: {transformer_impl: local, attention: unfused}"
        )
    if options.attention != "fastest" and options.transformer_impl != "local":
        yield (
            f"options.attention: {options.attention} is for Megatron-Core's local layers: "
            "set options.transformer_impl: local"
        )
    if options.transformer_impl == "transformer_engine" and topology.device == "cpu":
        yield "options.transformer_impl: transformer_engine needs GPUs; local is for all"


ENGINE = MegatronCoreEngine()
