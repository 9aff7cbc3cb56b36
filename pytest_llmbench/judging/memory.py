"""Memory of one GPU that a training takes: what it is never without, and an estimate of all of it."""

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.judging.flops import all_layers, parameters, parameters_of_stages

GIB = 2.0**30
# An estimate above this share of a GPU's memory gets a warning: against what was measured on H200 it errs by up to 8 %.
FULL = 0.9
# An estimate of so many times the memory is refused, of ranks of our own: the largest error against a measurement was a
# quarter. A framework may recompute by itself.
HOPELESS = 2.0
# On H200, the driver and the buffers of NCCL took 1.7 GB in addition to all tensors.
_BESIDE = 2 * GIB
# Micro batches of more tokens make a layer's products no faster.
_MOST_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of each parameter for weights, gradients and optimizer: `whole` on every copy of the model, or `split`."""

    whole: float
    split: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes that an engine keeps on its GPUs."""

    least: State  # no training of this layout has less, however the engine is set up
    usual: State  # as the engine keeps it, a copy that it makes for a moment included
    activation: float  # of each token and hidden unit of a layer for the backward pass; attention is fused
    logit: float  # of each logit that exists at a time
    most_logits: float = float("inf")  # logits that exist at a time, at most
    unit: float = 0.0  # of each parameter of a layer, while it is gathered from all copies and its gradient reduced
    embedding: float = 0.0  # of each parameter of the token embedding, for its gradient
    score: float = 0.0  # of each score of a token and head that a layer keeps, if attention is unfused
    inputs_split: bool = False  # whether tensor-parallel ranks share the inputs that a layer is recomputed from
    whole_batch: bool = False  # whether all sequences of a copy of the model are one micro batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on the GPU that has most: `least` is certain, `state` and `rest` (activations, buffers) are estimates."""

    least: float
    state: float
    rest: float

    @property
    def estimate(self) -> float:
        """All bytes that the training is expected to take."""
        return self.state + self.rest


def memory_of(recipe: Recipe, topology: Topology, footprint: Footprint) -> Memory:
    """Work out the memory of a training; the recipe is as `Recipe.on` returns it for this topology."""
    layout, model = recipe.parallelism, recipe.model
    copies = max(1, topology.world_size // layout.model_parallel_size)
    holders = copies * layout.context  # of the same parameters, among which state is split
    low = high = float(parameters(model, recipe.sequence_length))
    experts = all_layers(model).experts / (layout.pipeline * layout.expert_shares)
    if layout.tensor * layout.pipeline * layout.expert > 1:
        stages = parameters_of_stages(model, recipe.sequence_length, layout)
        low, high = max(stage.low for stage in stages), max(stage.high for stage in stages)

    def state(number: float, kept: State) -> float:
        # Ranks with different experts do not share the state of these.
        split = (number - experts) / holders + experts / max(1, holders * layout.tensor // layout.expert_shares)
        return number * kept.whole + split * kept.split

    return Memory(
        least=state(low, footprint.least),
        state=state(high, footprint.usual),
        rest=_activations(recipe, footprint, copies) + _BESIDE,
    )


def fitted(
    recipe: Recipe, topology: Topology, footprint: Callable[[Recipe, Topology], Footprint | None], memory: float | None
) -> Recipe:
    """Resolve `activation_checkpointing: auto` for GPUs of `memory` bytes; the recipe is as `Recipe.on` returns it.

    Without a memory, as on a CPU, nothing is recomputed and nothing is joined.
    """
    layout = recipe.parallelism
    if layout.activation_checkpointing != "auto":
        return recipe
    number = micro_batches(recipe, max(1, topology.world_size // layout.model_parallel_size))
    most = max(1, _MOST_TOKENS // (recipe.micro_batch_size * recipe.sequence_length))
    joined = [times for times in range(min(number, most), 0, -1) if number % times == 0]
    for times in joined if memory is not None else [1]:
        plain = recipe.model_copy(
            update={
                "parallelism": layout.model_copy(update={"activation_checkpointing": "none"}),
                "micro_batch_size": times * recipe.micro_batch_size,
            }
        )
        kept = footprint(plain, topology)
        if memory is None or (kept is not None and memory_of(plain, topology, kept).estimate <= FULL * memory):
            return plain
    return recipe.model_copy(update={"parallelism": layout.model_copy(update={"activation_checkpointing": "full"})})


def micro_batches(recipe: Recipe, copies: int) -> int:
    """Micro batches of one copy of the model in a step."""
    return max(1, recipe.samples_per_step // (copies * recipe.micro_batch_size))


def _activations(recipe: Recipe, footprint: Footprint, copies: int) -> float:
    """Bytes of activations, logits and buffers on the first stage, or the last where logits make it the larger one.

    Tensor-parallel ranks share 24 of 34 bytes of a layer, or all with the sequence (Korthikanti et al. 2022, "Reducing
    Activation Recomputation in Large Transformer Models", equations 2 and 4). The first stage of p has activations of p
    micro batches (section 4.2.3).
    """
    layout, model = recipe.parallelism, recipe.model
    sequences = recipe.samples_per_step // copies if footprint.whole_batch else recipe.micro_batch_size
    tokens = sequences * recipe.sequence_length / layout.context
    size = 2 if recipe.precision == "fp32" else 1
    shared = 1 / layout.tensor if layout.sequence else (10 + 24 / layout.tensor) / 34
    scores = footprint.score * recipe.sequence_length * model.attention_heads / layout.tensor
    layer = size * tokens * (footprint.activation * shared * _width(model) + scores)
    kept, working = layer, 0.0
    if layout.activation_checkpointing == "full":
        split = layout.sequence or footprint.inputs_split
        kept, working = size * 2 * tokens * model.hidden_size / (layout.tensor if split else 1), layer
    under_way: float = 1 if footprint.whole_batch else min(layout.pipeline, micro_batches(recipe, copies))
    if (chunks := layout.virtual_pipeline) > 1:
        under_way *= 1 + (layout.pipeline - 1) / (layout.pipeline * chunks)
    layers = model.layers / layout.pipeline
    logits = size * footprint.logit * min(tokens * model.vocab_size / layout.tensor, footprint.most_logits)
    of_layers = all_layers(model).total
    tables = parameters(model, recipe.sequence_length) - of_layers  # FSDP gathers these together, as it does a layer
    unit = footprint.unit * max(of_layers / (model.layers + model.further_predictions), tables) / layout.tensor
    embedding = footprint.embedding * model.vocab_size * model.hidden_size / layout.tensor
    buffers = working + embedding
    if layout.pipeline == 1:
        return layers * kept + max(unit, logits) + buffers
    return max(layers * kept * under_way + unit, layers * kept + logits) + buffers


def _width(model: ModelShape) -> float:
    """Hidden size of the OPT or GPT-3 layer whose activations take as many bytes as those of a layer of this model.

    Without dropout such a layer takes 32 bytes: 16 for the feed-forward's inner layer, 8 for query, key, value and
    mixed values. Experts keep a copy of a token each.
    """
    h, heads, d, experts = model.hidden_size, model.attention_heads, model.head_width, model.experts
    inner, copies = model.feed_forward_width, 0
    if experts is not None:
        inner, copies = experts.top_k * experts.feed_forward_size + experts.shared_size, experts.top_k
    attention = 2 * (heads + model.key_value_heads) * d
    return ((8 + 2 * copies) * h + 2 * attention + 4 * inner * (1.5 if model.gated else 1.0)) / 32
