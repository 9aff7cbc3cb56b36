"""Model FLOPs, the highest rate of matrix products that ranks showed together, and the parameters of each rank."""

import math
from collections.abc import Sequence

from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.recipe.recipes import ModelShape, Parallelism
from pytest_llmbench.core.record.claims import Span
from pytest_llmbench.core.record.series import RankInfo


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
    tokens, multiple = vocabulary(model), padded_to * ranks
    table = Span(math.floor(tokens.low / ranks) * h, math.ceil(tokens.high / multiple) * multiple // ranks * h)
    learned = positions * h if model.positions == "learned" else 0
    counts = []
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        fixed, tables = layers + first * learned + last * 2 * h, first or last
        counts.append(Span(fixed + tables * table.low, fixed + tables * table.high))
    return tuple(counts)


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
