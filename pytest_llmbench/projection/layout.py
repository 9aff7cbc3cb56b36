"""Layouts: how a model is spread over GPUs, and what each of them computes, holds and moves. Pure counts."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import ModelShape, Precision, Recipe
from pytest_llmbench.core.recipe.topology import Topology

Recomputation = Literal["none", "selective", "full"]
# Bytes of one parameter by precision: the weight, its gradient, and the optimizer's state. Source: Megatron-LM,
# docs/user-guide/features/dist_optimizer.md: 4 + 16/d for fp16, 6 + 12/d for bf16; fp32 has Adam's two moments.
_BYTES: dict[Precision, tuple[int, int, int]] = {"fp16": (2, 2, 16), "bf16": (2, 4, 12), "fp32": (4, 4, 8)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A model, its batch, and the ranks that share it.

    Ranks are numbered as Megatron-LM does: those of one tensor-parallel group are neighbours, then come the
    data-parallel ones, and the stages of the pipeline are furthest apart.

    Attributes:
        micro_batch: sequences per forward pass.
        micro_batches: how many of them one copy of the model takes per step.
        tensor, pipeline, data: ranks that share a layer, stages, copies of the model.
        chunks: of layers of one stage.
        sharded: whether the data-parallel ranks split the optimizer's state.
        sequence_parallel: whether tensor-parallel ranks also split what has no matrices.
    """

    model: ModelShape
    sequence_length: int
    micro_batch: int
    micro_batches: int
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1
    data: int = 1
    gpus_per_node: int
    recomputation: Recomputation = "none"
    precision: Precision = "bf16"
    sharded: bool = False
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        _refuse_uneven(self)

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline * self.data

    @property
    def nodes(self) -> int:
        """Nodes, the last one perhaps in part."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def layers_per_stage(self) -> int:
        """Layers of one stage."""
        return self.model.layers // self.pipeline

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.micro_batch * self.micro_batches * self.data

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.sequence_length

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens per forward pass of one copy."""
        return self.micro_batch * self.sequence_length

    @property
    def layer_flops(self) -> float:
        """Model FLOPs of one layer for one micro batch, of all its ranks: `6 (12 h² + 13 h) + 12 h s` a token."""
        h = self.model.hidden_size
        return self.tokens_per_micro_batch * (6.0 * (12 * h * h + 13 * h) + 12.0 * h * self.sequence_length)

    @property
    def head_flops(self) -> float:
        """Model FLOPs of the output layer and the last norm for one micro batch: `6 (V h + 2 h)` a token."""
        return self.tokens_per_micro_batch * 6.0 * self.model.hidden_size * (self.model.vocab_size + 2)

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one step, all ranks: what `flops_per_token` counts."""
        per_micro_batch = self.model.layers * self.layer_flops + self.head_flops
        return per_micro_batch * self.micro_batches * self.data

    @property
    def parameters_per_gpu(self) -> float:
        """Parameters of the fullest rank: of its layers and the token embedding, split over the tensor ranks."""
        h = self.model.hidden_size
        positions = self.sequence_length * h if self.model.positions == "learned" else 0
        return (self.layers_per_stage * (12 * h * h + 13 * h) + self.model.vocab_size * h) / self.tensor + positions

    @property
    def weight_bytes(self) -> float:
        """The fullest rank's weights, bytes."""
        return _BYTES[self.precision][0] * self.parameters_per_gpu

    @property
    def gradient_bytes(self) -> float:
        """Its gradients, bytes."""
        return _BYTES[self.precision][1] * self.parameters_per_gpu

    @property
    def state_bytes(self) -> float:
        """Its part of the optimizer's state, bytes."""
        return _BYTES[self.precision][2] * self.parameters_per_gpu / (self.data if self.sharded else 1)

    @property
    def activation_bytes(self) -> float:
        """Data sent from layer to layer for one micro batch, bytes, whole."""
        width = 4 if self.precision == "fp32" else 2
        return float(width * self.tokens_per_micro_batch * self.model.hidden_size)

    @property
    def plain(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**asdict(self), "model": self.model.model_dump()}

    def __str__(self) -> str:
        chunks = f" in {self.chunks} chunks" if self.chunks > 1 else ""
        return (
            f"tensor {self.tensor} × pipeline {self.pipeline}{chunks} × data {self.data}, "
            f"{self.micro_batches} micro batches of {self.micro_batch}"
        )


def same_work(one: Layout, other: Layout) -> bool:
    """Whether a GPU's share of a layer is the same in both but for what is recomputed: one's time is the other's."""
    return _work(one) == _work(other)


def _work(layout: Layout) -> tuple[object, ...]:
    """The properties that decide how long a GPU takes for its share of a layer. A GPU is as fast in bf16 as in fp16."""
    model = layout.model
    per_node = min(layout.tensor, layout.gpus_per_node)
    shape = (model.hidden_size, model.attention_heads, layout.sequence_length, layout.micro_batch)
    return (*shape, layout.tensor, per_node, layout.precision == "fp32")


def _refuse_uneven(layout: Layout) -> None:
    """Layouts that Megatron-LM would refuse, too."""
    counts = {
        "micro batch": layout.micro_batch, "micro batches": layout.micro_batches, "tensor": layout.tensor,
        "pipeline": layout.pipeline, "chunks": layout.chunks, "data": layout.data,
        "GPUs per node": layout.gpus_per_node,
    }  # fmt: skip
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: {count} must be at least 1")
    stages = layout.pipeline * layout.chunks
    if layout.model.layers % stages:
        raise ConfigError(f"{layout.model.layers} layers do not divide into {stages} chunks of equal size")
    if layout.chunks > 1 and layout.pipeline == 1:
        raise ConfigError(f"{layout.chunks} chunks of layers need a pipeline of at least 2 stages")
    if layout.chunks > 1 and layout.micro_batches % layout.pipeline:
        raise ConfigError(
            f"the interleaved schedule needs micro batches in multiples of the {layout.pipeline} stages,"
            f" not {layout.micro_batches}"
        )
    if layout.model.attention_heads % layout.tensor:
        raise ConfigError(f"{layout.model.attention_heads} attention heads do not divide into {layout.tensor} parts")


def layout_of(recipe: Recipe, topology: Topology, chunks: int | None = None, pipeline: int | None = None) -> Layout:
    """The recipe's layout on this number of nodes, with another pipeline if asked for.

    Its micro batches per copy stay what the recipe says, or follow from its global batch.

    Raises:
        ConfigError: it does not divide, or shards what is not modelled.
    """
    way = recipe.parallelism
    if way.sharding in {"gradients", "full"}:
        raise ConfigError(
            f"recipe {recipe.name}: sharding {way.sharding} is not modelled: each micro batch would gather or reduce;"
            " legal: none, optimizer"
        )
    stages = pipeline or way.pipeline
    copies, left = divmod(topology.gpus, way.tensor * stages)
    if left or not copies:
        raise ConfigError(
            f"{topology.gpus} GPUs do not divide into copies of the model: one takes {way.tensor * stages}"
            f" (tensor {way.tensor} × pipeline {stages})"
        )
    micro_batches = recipe.gradient_accumulation_steps
    if micro_batches is None:
        micro_batches, left = divmod(recipe.samples_per_step, copies * recipe.micro_batch_size)
        if left or not micro_batches:
            raise ConfigError(
                f"a global batch of {recipe.samples_per_step} does not divide into {copies} copies with micro batches"
                f" of {recipe.micro_batch_size}"
            )
    return Layout(
        model=recipe.model, sequence_length=recipe.sequence_length, micro_batch=recipe.micro_batch_size,
        micro_batches=micro_batches, tensor=way.tensor, pipeline=stages, data=copies,
        chunks=chunks or (way.virtual_pipeline if stages == way.pipeline else 1),
        gpus_per_node=topology.gpus_per_node, recomputation=way.activation_checkpointing, precision=recipe.precision,
        sharded=way.sharding == "optimizer", sequence_parallel=way.sequence,
    )  # fmt: skip
