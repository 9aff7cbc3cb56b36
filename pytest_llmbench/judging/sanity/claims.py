"""Whether a run trained what its recipe says: each of its claims, by itself, against the recipe.

A claim is compared with the recipe and never with another claim: of two ranks that say different things, one differs
from the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from pytest_llmbench.core.claims import Claim, ClaimName
from pytest_llmbench.core.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# A framework's log rounds large counts to six digits.
_ROUNDING = 1e-4


def claims(e: Evidence) -> Iterator[Problem]:
    """Name every claim that is not what the recipe says."""
    for claim in e.series.claims:
        expected = due(claim.name, e)
        if not _same(claim.value, expected):
            yield Problem(
                kind="wrong_work",
                message=f"{claim.where} says {_words(claim)}; recipe {e.recipe.name} says {expected} ({e.topology}): "
                f"another training was run than the one to be judged",
                log=claim.log,
            )


def due(name: ClaimName, e: Evidence) -> int | float | str:
    """Return the value that the recipe asks for on this topology."""
    return _DUE[name](e)


def _same(said: float | str, expected: float | str) -> bool:
    if isinstance(said, int | str) or isinstance(expected, str):
        return said == expected
    return math.isclose(said, expected, rel_tol=_ROUNDING)


def _words(claim: Claim) -> str:
    return f"{claim.name.replace('_', ' ')} {claim.value}"


_DUE: Mapping[ClaimName, Callable[[Evidence], int | float | str]] = {
    "layers": lambda e: e.recipe.model.layers,
    "hidden_size": lambda e: e.recipe.model.hidden_size,
    "attention_heads": lambda e: e.recipe.model.attention_heads,
    "sequence_length": lambda e: e.recipe.sequence_length,
    "global_batch_size": lambda e: e.recipe.samples_per_step,
    "micro_batch_size": lambda e: e.recipe.micro_batch_size,
    "tensor": lambda e: e.recipe.parallelism.tensor,
    "pipeline": lambda e: e.recipe.parallelism.pipeline,
    "precision": lambda e: e.recipe.precision,
    "world_size": lambda e: e.topology.world_size,
    "steps": lambda e: e.recipe.steps,
}
