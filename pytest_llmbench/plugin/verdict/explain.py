"""Failing comparisons, in words: called by pytest when an assertion fails."""

from __future__ import annotations

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.plugin.verdict.measured import Measured, explain

_MIRRORED = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
_MISSED = {">=": "below", ">": "below", "<=": "above", "<": "above"}


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """Explain `measured >= quantity`, either way round, and `measured in reference`; None for anything else."""
    if isinstance(right, Measured) and not isinstance(left, Measured) and op in _MIRRORED:
        op, left, right = _MIRRORED[op], right, left
    if not isinstance(left, Measured):
        return None
    if isinstance(right, Quantity) and op in _MISSED:
        return explain(left, right, _MISSED[op])
    if isinstance(right, Reference) and op == "in":
        missed = right.missed_by(left)
        if missed is not None:
            bound_op, bound = missed
            return [*explain(left, bound, _MISSED[bound_op]), *describe(right)]
    return None


def describe(reference: Reference) -> list[str]:
    """Say what a reference is and where it comes from."""
    meant = str(reference.applies_to or "any machine")
    return [
        f"reference: {reference.name} ({reference.asked}) for {meant}",
        f"  {' '.join(reference.why.split())} [{reference.source}, {reference.date}]",
    ]
