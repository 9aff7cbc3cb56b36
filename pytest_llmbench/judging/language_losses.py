"""Bounds of the losses of a language model that starts from random values."""

import math
from functools import cache

from pytest_llmbench.core.recipe.recipes import Recipe, SyntheticTokens
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Expected

# Largest change of a first loss by chance, in initial values and in one step's data.
_CHANCE_NAT = 0.5
# Every step of every run is within this many standard deviations of the mean.
_DEVIATIONS = 8.0
# Losses of bf16 and fp16 are rounded on their way.
_ROUNDING = 0.02
# Standard deviation of a model's loss over tokens if the data are unknown; for text it is 2 to 3.
_OF_TEXT_NAT = 3.0
# Ranks with different documents may differ by this share of the largest loss.
_OF_DOCUMENTS = 0.25


def expected_of(
    recipe: Recipe, topology: Topology, *, parameters: int, initial_std: float, own_losses: bool = True
) -> Expected:
    """Losses and counts to expect of a whole decoder, trained from random values on cross entropy.

    `parameters` are those of one copy as its ranks count them, `initial_std` is of its matrices; with `own_losses` each
    rank logs the loss of its own sequences.
    """
    recipe = recipe.on(topology)
    copies = max(1, topology.world_size // recipe.parallelism.model_parallel_size)
    of_copy = math.sqrt(recipe.tokens_per_step / copies)
    if isinstance(recipe.data, SyntheticTokens):
        entropy, deviation = zipf(recipe.model.vocab_size)
        least = (1 - _ROUNDING) * entropy - _DEVIATIONS * deviation / math.sqrt(recipe.tokens_per_step)
        spread = _DEVIATIONS * max(deviation, _OF_TEXT_NAT) / of_copy
    else:
        least = 0.0
        spread = _DEVIATIONS * _OF_TEXT_NAT / of_copy + _OF_DOCUMENTS * math.log(recipe.model.vocab_size)
    return Expected(
        layers=recipe.model.layers,
        parameters=parameters,
        first_loss=first_loss(recipe.model, initial_std),
        least_loss=max(0.0, least),
        spread=spread,
        own_losses=own_losses,
        one_model=True,
    )


def first_loss(model: ModelShape, initial_std: float) -> tuple[float, float]:
    """Least and most that the first loss can be, nat per token.

    An untrained model gives each of V tokens about the same probability: ln V. Logits are products of a normed vector
    (√h long) with rows of the embedding (√h s long, s their deviation): they scatter by √h s, which adds h s² / 2. The
    row of the input token is part of that vector, as the embedding is tied: its logit h s is the loss if it is above
    ln V.
    """
    uniform, own = math.log(model.vocab_size), model.hidden_size * initial_std
    return uniform - _CHANCE_NAT, max(uniform, own) + own * initial_std / 2 + _CHANCE_NAT


@cache
def zipf(vocab_size: int) -> tuple[float, float]:
    """Entropy of the tokens of `workloads.tokens`, and the standard deviation of a token's surprise, in nat."""
    harmonic = math.fsum(1 / rank for rank in range(1, vocab_size + 1))
    surprises = [(1 / (rank * harmonic), math.log(rank * harmonic)) for rank in range(1, vocab_size + 1)]
    entropy = math.fsum(share * surprise for share, surprise in surprises)
    square = math.fsum(share * surprise**2 for share, surprise in surprises)
    return entropy, math.sqrt(max(0.0, square - entropy**2))
