"""The shape of a decoder-only transformer: that of OPT and GPT-3, and what models of today have instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.schema import Strict

Activation = Literal["relu", "gelu", "squared_relu", "swiglu"]


class RotaryScaling(Strict):
    """Stretched rotary positions as of Llama 3.1: low frequencies are divided by `factor`, high ones stay."""

    factor: PositiveFloat = 8.0
    """Factor by which the context is longer than that of the first training."""
    low: PositiveFloat = 1.0
    """Turns within `positions` up to which a frequency is divided by all of `factor`."""
    high: PositiveFloat = 4.0
    """Turns within `positions` from which on a frequency stays as it is."""
    positions: PositiveInt = 8192
    """Context of the first training, in tokens."""


class Rotary(Strict):
    """Rotary positions (Su et al. 2021, "RoFormer")."""

    base: PositiveFloat = 10000.0
    """Base of the wavelengths."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's width that is rotated."""
    scaling: RotaryScaling | None = None
    """Stretching of the wavelengths; absent, none."""


class Window(Strict):
    """Attention to the last tokens only, in some layers."""

    size: PositiveInt
    """Number of tokens that a token attends to in such a layer, itself included."""
    full_every: PositiveInt | None = None
    """Each layer whose number is a multiple of this attends to all tokens; absent, no layer does."""


class LatentAttention(Strict):
    """Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values come from short latent vectors."""

    query_rank: PositiveInt | None
    """Size of the latent vector of the queries; null for queries without one."""
    key_value_rank: PositiveInt
    """Size of the latent vector of keys and values."""
    rotary_size: PositiveInt
    """Part of a query and key that is rotated, in addition to `head_size`; all heads share that of the key."""
    value_size: PositiveInt
    """Size of a head's value."""


class Experts(Strict):
    """Mixture of experts, which replaces the feed-forward layers: a router sends each token to `top_k` of them."""

    number: PositiveInt
    """Number of experts in a layer."""
    top_k: PositiveInt
    """Number of experts that a token is sent to."""
    feed_forward_size: PositiveInt
    """Width of one expert."""
    shared_size: Annotated[int, Field(ge=0)] = 0
    """Width of the shared experts together, through which every token goes."""
    dense_layers: Annotated[int, Field(ge=0)] = 0
    """Number of first layers with a feed-forward layer of `model.feed_forward_size` and no experts."""

    @model_validator(mode="after")
    def _enough(self) -> Experts:
        if self.top_k > self.number:
            raise ValueError(f"top_k {self.top_k} is more than the {self.number} experts of a layer")
        return self


class ModelShape(Strict):
    """A decoder-only transformer: pre-norm blocks of attention and feed-forward layer, a final norm, an output layer.

    A recipe that gives only the first keys has the shape of OPT and GPT-3.
    """

    layers: PositiveInt
    """Number of transformer blocks."""
    hidden_size: PositiveInt
    """Width of the model."""
    attention_heads: PositiveInt
    """Number of attention heads; must divide `hidden_size` without `head_size`."""
    vocab_size: PositiveInt
    """Number of token ids."""
    positions: Literal["learned", "rope"] = "learned"
    """Type of position embeddings: learned, or rotary without parameters."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate."""
    query_groups: PositiveInt | None = None
    """Number of heads of keys and values, each for a group of query heads; absent, `attention_heads`."""
    head_size: PositiveInt | None = None
    """Width of an attention head; absent, `hidden_size` / `attention_heads`."""
    feed_forward_size: PositiveInt | None = None
    """Width of the feed-forward layer; absent, 4 × `hidden_size`."""
    activation: Activation | None = None
    """Activation of the feed-forward layer; `swiglu` has a gate. Absent, ReLU in engines `torch`, `deepspeed`,
    `megatron_core` and `metaseq`, and GELU in `megatron_lm` and `nemo`.
    """
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Type of the norms."""
    biases: Literal["all", "qkv", "none"] = "all"
    """Linear layers with a bias: all, those of query, key and value, or none."""
    tied_embeddings: bool = True
    """Whether the output layer is the token embedding."""
    query_key_norm: bool = False
    """Whether queries and keys pass a norm, one for all heads."""
    rotary: Rotary = Rotary()
    """Rotary positions, with `positions: rope`."""
    window: Window | None = None
    """Attention to the last tokens only; absent, to all."""
    latent_attention: LatentAttention | None = None
    """Latent attention; absent, none."""
    experts: Experts | None = None
    """Mixture of experts; absent, none."""
    further_predictions: Annotated[int, Field(ge=0)] = 0
    """Number of modules that each predict one token further (multi-token prediction), with a layer of their own."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if self.head_size is None and self.hidden_size % self.attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.attention_heads} attention heads"
            )
        if self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"attention_heads {self.attention_heads} do not divide into {self.query_groups} query_groups"
            )
        if self.positions == "learned" and self.rotary != Rotary():
            raise ValueError("rotary is about positions: rope; set that, or leave rotary out")
        if self.latent_attention is not None and (self.query_groups is not None or self.head_size is None):
            raise ValueError("latent_attention needs head_size, and has no query_groups")
        if self.experts is not None and self.experts.dense_layers >= self.layers:
            raise ValueError(f"experts.dense_layers {self.experts.dense_layers} leave none of {self.layers} layers")
        return self

    @property
    def key_value_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.query_groups or self.attention_heads

    @property
    def head_width(self) -> int:
        """Width of a query or key, without the rotated part of latent attention."""
        return self.head_size or self.hidden_size // self.attention_heads

    @property
    def feed_forward_width(self) -> int:
        """Width of a feed-forward layer without experts."""
        return self.feed_forward_size or 4 * self.hidden_size

    @property
    def gated(self) -> bool:
        """True if the feed-forward layer has a gate: a second matrix of the first one's size."""
        return self.activation == "swiglu"

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.experts is None else self.layers - self.experts.dense_layers


# Keys with which every engine has to cope: numbers of a plain decoder.
_PLAIN = frozenset({"layers", "hidden_size", "attention_heads", "vocab_size", "dropout"})
# Keys of dense models that are trained today.
DENSE = frozenset({
    "model.positions", "model.query_groups", "model.head_size", "model.feed_forward_size", "model.activation",
    "model.norm", "model.biases", "model.tied_embeddings", "model.query_key_norm", "model.rotary",
})  # fmt: skip
MIXTURES = frozenset({"model.experts", "parallelism.expert"})


def unusual(where: str, part: BaseModel, plain: frozenset[str] = _PLAIN) -> Iterator[tuple[str, Any]]:
    """Yield each key of a part of a recipe that differs from its default, as `model.norm`, and its value."""
    for key, field in type(part).model_fields.items():
        value = getattr(part, key)
        if key not in plain and value != field.default:
            yield f"{where}.{key}", value
