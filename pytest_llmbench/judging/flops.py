"""Model FLOPs, the highest rate of matrix products that ranks showed together, and the parameters of each rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.recipe.recipes import Parallelism
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.record.claims import Span
from pytest_llmbench.core.record.series import RankInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Parameters of a part of a model, by how ranks divide them."""

    split: int = 0  # matrices and biases that tensor-parallel ranks share
    whole: int = 0  # norms and further biases, which each of them has
    experts: int = 0  # routed experts, which expert-parallel or else tensor-parallel ranks share
    used: float = 1.0  # share of the experts that a token is sent to

    @property
    def total(self) -> int:
        """All parameters."""
        return self.split + self.whole + self.experts

    @property
    def of_token(self) -> float:
        """Parameters that a token is multiplied with."""
        return self.split + self.whole + self.used * self.experts


def norm_size(model: ModelShape, width: int) -> int:
    """Parameters of a norm: weights, and of a layer norm as many biases."""
    return width if model.norm == "rms_norm" else 2 * width


def _attention(model: ModelShape) -> Weights:
    h, heads, d = model.hidden_size, model.attention_heads, model.head_width
    qkv = (heads + 2 * model.key_value_heads) * d
    whole = norm_size(model, h) + (h if model.biases == "all" else 0)
    whole += 2 * norm_size(model, d) if model.query_key_norm else 0
    if (latent := model.latent_attention) is None:
        return Weights(split=h * (qkv + heads * d) + (qkv if model.biases != "none" else 0), whole=whole)
    query, rank, rotary = heads * (d + latent.rotary_size), latent.query_rank, latent.rotary_size
    inner = latent.key_value_rank
    split = query * (rank or h) + heads * (d + latent.value_size) * inner + heads * latent.value_size * h
    if rank is not None:
        whole += h * rank + norm_size(model, rank)
    return Weights(split=split, whole=whole + h * (inner + rotary) + norm_size(model, inner))


def _feed_forward(model: ModelShape, *, dense: bool) -> Weights:
    h, biases, norm = model.hidden_size, model.biases == "all", norm_size(model, model.hidden_size)
    inputs = 2 if model.gated else 1  # matrices from the hidden size; one more leads back
    if (experts := model.experts) is None or dense:
        width = model.feed_forward_width
        return Weights(split=(inputs + 1) * h * width + biases * inputs * width, whole=norm + biases * h)
    one = (inputs + 1) * h * experts.feed_forward_size + biases * (inputs * experts.feed_forward_size + h)
    router, used = experts.number * (h + biases), experts.top_k / experts.number
    shared = (inputs + 1) * h * experts.shared_size
    return Weights(split=shared, whole=norm + router, experts=experts.number * one, used=used)


def layer_weights(model: ModelShape, *, dense: bool = False) -> Weights:
    """Count the parameters of one layer: one with experts if the model has them, unless it is `dense`."""
    one, other = _attention(model), _feed_forward(model, dense=dense)
    split, whole = one.split + other.split, one.whole + other.whole
    return Weights(split=split, whole=whole, experts=other.experts, used=other.used)


def all_layers(model: ModelShape) -> Weights:
    """Count the parameters of all layers, and of the modules that predict further tokens, each with a layer."""
    h, modules = model.hidden_size, model.further_predictions
    first, last = layer_weights(model, dense=True), layer_weights(model)
    rest = model.expert_layers if model.experts else model.layers
    dense, rest = model.layers - rest, rest + modules
    return Weights(
        split=dense * first.split + rest * last.split + modules * 2 * h * h,
        whole=dense * first.whole + rest * last.whole + modules * 3 * norm_size(model, h),
        experts=rest * last.experts,
        used=last.used,
    )


def parameters(model: ModelShape, sequence_length: int) -> int:
    """Count the trainable parameters of the decoder: embeddings, layers, final norm, and an output layer of its own.

    A layer of OPT or GPT-3 has 12 h² weights (4 h² attention, 8 h² feed-forward), 9 h biases of these and 4 h of the
    two layer norms.
    """
    h = model.hidden_size
    tables = model.vocab_size * h * (1 if model.tied_embeddings else 2)
    positions = sequence_length * h if model.positions == "learned" else 0
    return tables + positions + all_layers(model).total + norm_size(model, h)


def flops_per_token(model: ModelShape, sequence_length: int) -> float:
    """Model FLOPs to train on one token: `6 N + 12 L H Q T`, without recomputed activations.

    N is the count of parameters that a token is multiplied with, L the layers, H the heads, Q the head width and T the
    sequence length. Source: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", appendix B. N has
    the output layer once for each predicted token, `top_k` of the experts, and no embedding that is only looked up.
    """
    h, predictions = model.hidden_size, 1 + model.further_predictions
    n = all_layers(model).of_token + norm_size(model, h) + predictions * model.vocab_size * h
    return 6.0 * n + attention_flops(model, sequence_length)


def causal_flops_per_token(model: ModelShape, sequence_length: int) -> float:
    """Model FLOPs of one token without the half of the attention that causality masks, as Megatron-LM counts today."""
    return flops_per_token(model, sequence_length) - attention_flops(model, sequence_length) / 2


def attention_flops(model: ModelShape, sequence_length: int) -> float:
    """FLOPs of one token in the products of queries with keys, and of scores with values, unmasked.

    A layer with a window costs twice what is left after its mask, as the others do.
    """
    latent, d, window = model.latent_attention, model.head_width, model.window
    width = 2 * d if latent is None else d + latent.rotary_size + latent.value_size
    tokens = float((model.layers + model.further_predictions) * sequence_length)
    if window is not None and window.size < sequence_length:
        full = model.layers // window.full_every if window.full_every else 0
        seen = 2 * window.size - window.size**2 / sequence_length
        tokens = (full + model.further_predictions) * sequence_length + (model.layers - full) * seen
    return 6.0 * model.attention_heads * width * tokens


# A tokenizer may have fewer tokens than the model's table, which is padded (OPT: 50265 of 50272).
_VOCABULARY = 0.01


def vocabulary(model: ModelShape) -> Span:
    """Least and most tokens that the tokenizer of such a model may have."""
    return Span((1 - _VOCABULARY) * model.vocab_size, (1 + _VOCABULARY) * model.vocab_size)


def parameters_of_stages(
    model: ModelShape, positions: int, parallelism: Parallelism, padded_to: int = 128
) -> tuple[Span, ...]:
    """Count the parameters of a rank of each pipeline stage, as Megatron cuts a decoder.

    In OPT or GPT-3, tensor-parallel ranks share the matrices, the biases of column-parallel ones (3 h of attention, 4 h
    of the feed-forward), and the vocabulary. Each rank has the rest of every layer: 2 h of biases and 4 h of norms. The
    last stage has the output layer, or a copy of the tied token embedding. The vocabulary is padded to at most a
    multiple of `padded_to` a rank. Stages have equally many layers; the first has those without experts.
    """
    h, ranks, stages = model.hidden_size, parallelism.tensor, parallelism.pipeline
    number, extra = model.layers // stages, model.layers % stages
    dense = model.experts.dense_layers if model.experts else 0
    tokens, multiple = vocabulary(model), padded_to * ranks
    table = Span(math.floor(tokens.low / ranks) * h, math.ceil(tokens.high / multiple) * multiple // ranks * h)
    learned = positions * h if model.positions == "learned" else 0
    counts = []
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        here = [min(number, max(0, dense - stage * number)), 0]
        here[1] = number - here[0]
        layers = sum(
            count * of_rank(layer_weights(model, dense=of_dense), parallelism)
            for count, of_dense in zip(here, (True, False), strict=True)
        )
        fixed = layers + first * learned + last * norm_size(model, h)
        tables = (first or last) if model.tied_embeddings else first + last
        # Layers that do not divide, and modules for further tokens, may be on any stage.
        more = (extra > 0) * of_rank(layer_weights(model), parallelism)
        more += model.further_predictions * (of_rank(layer_weights(model), parallelism) + 2 * h * h + 6 * h)
        counts.append(Span(fixed + tables * table.low, fixed + tables * table.high + more))
    return tuple(counts)


def of_rank(weights: Weights, parallelism: Parallelism) -> int:
    """Count what one rank has of some weights."""
    return weights.split // parallelism.tensor + weights.whole + weights.experts // parallelism.expert_shares


# On an otherwise idle machine two measurements differ by a few percent. A factor above this one means that another
# program slowed one of them.
_ALIKE = 1.5


def rates_together(ranks: Sequence[RankInfo]) -> tuple[float, ...]:
    """Sum of the ranks' rates, FLOP/s, for each measurement that all of them made; empty if a rank made none."""
    return tuple(map(sum, zip(*(info.matmul_rates for info in ranks), strict=False)))


def doubt(rates: Sequence[float]) -> float:
    """Factor by which the ceiling may be higher than the highest of these rates; 1 if the ceiling is certain.

    A rate that was reached twice, or nearly, is the ceiling. A rate that was reached once may itself be too low, as the
    program that slowed all other measurements by this factor or more may have slowed the highest one as well.
    """
    best, *others = sorted(rates, reverse=True)
    factor = best / others[0] if others else 1.0
    return factor if factor > _ALIKE else 1.0


def describe_rates(ranks: Sequence[RankInfo]) -> str:
    """The rates that the ranks measured, and what to do, as words for a message."""
    rates = ", ".join(for_people(rate / 1e9, 3) for rate in rates_together(ranks))
    return (
        f"the ranks measured matrix-product rates of {rates} GFLOP/s, because something else used the machine: stop "
        "the other programs on it, and run the test again"
    )
