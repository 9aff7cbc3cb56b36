"""Model FLOPs and their share of the hardware's peak, and the parameters of each rank of a model-parallel group."""

import math

from pytest_llmbench.core.recipe.recipes import ModelShape, Parallelism
from pytest_llmbench.core.record.claims import Span


def parameters(model: ModelShape, sequence_length: int) -> int:
    """Count the trainable parameters of the decoder: tied token embedding, learned positions if any, layers.

    Per layer 12 h² weights (4 h² attention, 8 h² feed-forward), 9 h biases of these and 4 h of the two
    layer norms; then the final layer norm.
    """
    h = model.hidden_size
    return model.vocab_size * h + _positions(model, sequence_length) + model.layers * (12 * h * h + 13 * h) + 2 * h


def flops_per_token(model: ModelShape, sequence_length: int) -> float:
    """Model FLOPs to train on one token: `6 N + 12 L H Q T`, without recomputed activations.

    N is the parameter count, L the layers, H the heads, Q the head width (H Q is the hidden size) and T the sequence
    length. Source: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", appendix B. N counts the
    token embedding, which is also the output layer here, and leaves out learned positions, which are only looked up.
    """
    n = parameters(model, sequence_length) - _positions(model, sequence_length)
    return 6.0 * n + 12.0 * model.layers * model.hidden_size * sequence_length


def _positions(model: ModelShape, sequence_length: int) -> int:
    return sequence_length * model.hidden_size if model.positions == "learned" else 0


# A tokenizer may have fewer tokens than the model's table, which is padded (OPT: 50265 of 50272).
_VOCABULARY = 0.01


def vocabulary(model: ModelShape) -> Span:
    """Least and most tokens that the tokenizer of such a model may have."""
    return Span((1 - _VOCABULARY) * model.vocab_size, (1 + _VOCABULARY) * model.vocab_size)


def parameters_of_stages(
    model: ModelShape, positions: int, parallelism: Parallelism, padded_to: int = 128
) -> tuple[Span, ...]:
    """Count the parameters of a rank of each pipeline stage, as Megatron cuts a decoder.

    Tensor-parallel ranks share the matrices, the biases of column-parallel ones (3 h of attention, 4 h of the
    feed-forward), and the vocabulary. Each rank has the rest of every layer: 2 h of biases and 4 h of norms. The last
    stage has a copy of the tied token embedding. The vocabulary is padded to at most a multiple of `padded_to` a rank.
    """
    h, ranks, stages = model.hidden_size, parallelism.tensor, parallelism.pipeline
    layers = model.layers // stages * ((12 * h * h + 7 * h) // ranks + 6 * h)
    table = _table(model, ranks, padded_to)
    learned = positions * h if model.positions == "learned" else 0
    counts = []
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        fixed, tables = layers + first * learned + last * 2 * h, first or last
        counts.append(Span(fixed + tables * table.low, fixed + tables * table.high))
    return tuple(counts)


def _table(model: ModelShape, ranks: int, padded_to: int) -> Span:
    tokens, multiple = vocabulary(model), padded_to * ranks
    padded = math.ceil(tokens.high / multiple) * multiple
    return Span(math.floor(tokens.low / ranks) * model.hidden_size, padded // ranks * model.hidden_size)
