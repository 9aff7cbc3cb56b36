"""Compares the claims of a log (layers, batch, layout, precision, ...) with the recipe, each by itself.

If two ranks make different claims, one of them differs from the recipe.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from pytest_llmbench.core.record.claims import Asked, Claim, ClaimName, Span, on_off
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# A framework's log rounds large counts to six digits, and parameters in words (`331 M`) to three.
_ROUNDING = 1e-4
_ROUNDED_COUNT = 5e-3


def claims(e: Evidence) -> Iterator[Problem]:
    """Refuse every claim that differs from the recipe."""
    for claim in e.series.claims:
        expected = _of_stage(due(claim.name, e), claim.stage)
        if expected is not None and not _same(claim.value, expected):
            yield Problem(
                #: problem wrong_work: a setting in the log (layers, batch, layout, precision, ...) that is not the
                #:  recipe's
                kind="wrong_work",
                message=f"{claim.where} says {_words(claim)}; recipe {e.recipe.name} says {expected} ({e.topology}): "
                f"the log is of another training than the recipe's",
                log=claim.log,
            )


def due(name: ClaimName, e: Evidence) -> Asked:
    """Return what the run's engine or else the recipe asks for on this topology; None if unknown."""
    if name in e.asks:
        return e.asks[name]
    if name == "sharding" and _copies(e) == 1:
        return None  # a single copy has all of its state to itself
    return OF_RECIPES[name](e) if name in OF_RECIPES else None


def _of_stage(expected: Asked, stage: int) -> int | float | str | Span | None:
    """Choose the value of a pipeline stage; a stage beyond those of the recipe has to be empty."""
    if isinstance(expected, tuple):
        return expected[stage] if stage < len(expected) else Span(0, 0)
    return expected


def _same(value: float | str, expected: float | str | Span) -> bool:
    if isinstance(expected, Span):
        slack = _ROUNDED_COUNT if isinstance(value, float) else 0.0
        return not isinstance(value, str) and expected.low * (1 - slack) <= value <= expected.high * (1 + slack)
    if isinstance(value, int | str) or isinstance(expected, str):
        return value == expected
    return math.isclose(value, expected, rel_tol=_ROUNDING)


def _words(claim: Claim) -> str:
    return f"{claim.name.replace('_', ' ')} {claim.value}"


def _copies(e: Evidence) -> int:
    return max(1, e.topology.world_size // e.recipe.parallelism.model_parallel_size)


OF_RECIPES: Mapping[ClaimName, Callable[[Evidence], int | float | str]] = {
    "layers": lambda e: e.recipe.model.layers,
    "hidden_size": lambda e: e.recipe.model.hidden_size,
    "attention_heads": lambda e: e.recipe.model.attention_heads,
    "sequence_length": lambda e: e.recipe.sequence_length,
    "global_batch_size": lambda e: e.recipe.samples_per_step,
    "micro_batch_size": lambda e: e.recipe.micro_batch_size,
    "tensor": lambda e: e.recipe.parallelism.tensor,
    "pipeline": lambda e: e.recipe.parallelism.pipeline,
    "precision": lambda e: e.recipe.precision,
    "fp16": lambda e: on_off(e.recipe.precision == "fp16"),
    "bf16": lambda e: on_off(e.recipe.precision == "bf16"),
    "world_size": lambda e: e.topology.world_size,
    "steps": lambda e: e.recipe.steps,
    "micro_batches": lambda e: e.recipe.samples_per_step // (e.recipe.micro_batch_size * _copies(e)),
    "feed_forward_size": lambda e: 4 * e.recipe.model.hidden_size,
    "positions": lambda e: e.recipe.model.positions,
    "sharding": lambda e: e.recipe.parallelism.sharding,
    "sequence_parallel": lambda e: on_off(e.recipe.parallelism.sequence),
    "activation_checkpointing": lambda e: e.recipe.parallelism.activation_checkpointing,
    "frozen_parameters": lambda _: 0,
}
