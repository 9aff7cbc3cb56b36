"""Megatron-Core's transformer layer with its own parts and parameters, but fewer passes between matrix products.

Megatron-Core waits for parameters that are still being gathered when the module that holds them is called: a module is
called before its parameters are used, but in `CompiledLayer`, with which nothing is gathered ahead.
"""

from contextlib import nullcontext
from typing import Any

import torch
from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, get_cuda_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn
from torch.nn import functional

from pytest_llmbench.engines.megatron_core.ranks.parts import pointwise
from pytest_llmbench.engines.megatron_core.ranks.parts.linear import column, row
from pytest_llmbench.engines.megatron_core.ranks.parts.versions import mlp_parts
from pytest_llmbench.engines.megatron_core.ranks.sending import Split


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    """Map three of [sequence, batch, heads, width] to [sequence, batch, heads × width]."""
    query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    return mixed.permute(2, 0, 1, 3).flatten(2)


class FusedAttention(nn.Module):
    """`attend` as a part of Megatron-Core's layer."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self._dropout = config.attention_dropout
        # With sequence parallelism the whole layer draws the numbers of its own tensor-parallel rank.
        self._own_numbers = not config.sequence_parallel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """See `attend`."""
        dropout = self._dropout if self.training else 0.0
        with get_cuda_rng_tracker().fork() if dropout and self._own_numbers else nullcontext():
            return attend(query, key, value, dropout)


class Norm(nn.LayerNorm):
    """Layer norm that also serves sequence parallelism; Megatron-Core's needs Apex or Transformer Engine for that."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in self.parameters():
            # Each rank sees its part of the sequence, so that Megatron-Core has to sum these gradients.
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class _CompiledNorm(Norm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return pointwise.norm(hidden, self.weight, self.bias, self.eps)


class _NormOfSum(Norm):
    """The norm after attention, which ends the residual branch of attention too."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(config, hidden_size, eps)
        self._dropout = config.hidden_dropout

    def forward(  # type: ignore[override]
        self, branch: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return pointwise.add_branch_and_norm(
            branch, bias, residual, self._dropout if self.training else 0.0, self.weight, self.bias, self.eps
        )


class Column(ColumnParallelLinear):  # type: ignore[misc]
    """See `linear.column`."""

    relu = False
    shares: Split

    def forward(self, hidden: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, None]:
        """The product with its bias, and no bias that is left to add."""
        return column(hidden, self.weight, self.bias, self.shares, relu=self.relu), None


class ColumnRelu(Column):
    """The same with a ReLU."""

    relu = True


class SplitRow(RowParallelLinear):  # type: ignore[misc]
    """See `linear.row`."""

    shares: Split

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, nn.Parameter]:
        """The product, and the bias that is left to add."""
        return row(hidden, self.weight, self.shares), self.bias


class PointwiseLayer(TransformerLayer):  # type: ignore[misc]
    """A layer whose parts are those above."""

    def forward(
        self, hidden_states: torch.Tensor, *_: object, rotary_pos_emb: torch.Tensor | None = None, **__: object
    ) -> tuple[torch.Tensor, None]:
        """Map [s, b, h] to the same shape, split like it."""
        attention, mlp = self.self_attention, self.mlp
        qkv, _ = attention.linear_qkv(self.input_layernorm(hidden_states))
        query, key, value = _heads(qkv, self.config.kv_channels)
        if rotary_pos_emb is not None:
            query, key = (apply_rotary_pos_emb(tensor, rotary_pos_emb, config=self.config) for tensor in (query, key))
        mixed = attention.core_attention(query, key, value)
        hidden, normed = self.pre_mlp_layernorm(*attention.linear_proj(mixed), hidden_states)
        inner, _ = mlp.linear_fc1(normed)
        dropout = self.config.hidden_dropout if self.training else 0.0
        branch, bias = mlp.linear_fc2(inner)
        return pointwise.add_branch(branch, bias, hidden, dropout), None


class CompiledLayer(TransformerLayer):  # type: ignore[misc]
    """A layer of one tensor-parallel rank, with learned positions, as one function; none of its modules is called."""

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, None]:
        """Map [s, b, h] to the same shape."""
        config, attention, mlp = self.config, self.self_attention, self.mlp
        of_attention = (self.input_layernorm, attention.linear_qkv, attention.linear_proj)
        of_mlp = (self.pre_mlp_layernorm, mlp.linear_fc1, mlp.linear_fc2)
        parameters = [parameter for part in of_attention + of_mlp for parameter in (part.weight, part.bias)]
        dropout = (config.attention_dropout, config.hidden_dropout) if self.training else (0.0, 0.0)
        return _layer(hidden_states, parameters, config.kv_channels, config.layernorm_epsilon, dropout), None


@torch.compile(dynamic=False)
def _layer(
    hidden: torch.Tensor, parameters: list[torch.Tensor], width: int, eps: float, dropout: tuple[float, float]
) -> torch.Tensor:
    norm1, norm1_bias, qkv, qkv_bias, out, out_bias, norm2, norm2_bias, fc1, fc1_bias, fc2, fc2_bias = parameters
    normed = functional.layer_norm(hidden, norm1.shape, norm1, norm1_bias, eps)
    heads = _heads(functional.linear(normed, qkv, qkv_bias), width)
    mixed = functional.linear(attend(*heads, dropout[0]), out, out_bias)
    hidden = hidden + functional.dropout(mixed, dropout[1])
    normed = functional.layer_norm(hidden, norm2.shape, norm2, norm2_bias, eps)
    inner = functional.relu(functional.linear(normed, fc1, fc1_bias))
    return hidden + functional.dropout(functional.linear(inner, fc2, fc2_bias), dropout[1])


def _heads(qkv: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value, each of [s, b, heads of this rank, width]; a head's three are together in `qkv`."""
    query, key, value = qkv.view(*qkv.shape[:2], -1, 3, width).unbind(3)
    return query, key, value


def use(spec: Any, fusion: str, *, sdpa: bool) -> None:
    """Put into the specification of a layer what `Options.fusion` names; `sdpa` for PyTorch's attention."""
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    attention = parts.self_attention.submodules
    if sdpa:
        attention.core_attention = FusedAttention
    if fusion == "layer":
        spec.module = CompiledLayer
    if fusion == "pointwise":
        spec.module = PointwiseLayer
        parts.input_layernorm, parts.pre_mlp_layernorm = _CompiledNorm, _NormOfSum
        attention.linear_qkv, attention.linear_proj = Column, SplitRow
        mlp = mlp_parts(spec)
        mlp.linear_fc1, mlp.linear_fc2 = ColumnRelu, SplitRow


def share(model: nn.Module, shares: Split) -> None:
    """Tell a model's products who shares them."""
    for module in model.modules():
        if isinstance(module, Column | SplitRow):
            module.shares = shares
