"""Validation: every check looks at every node once, and each node has a verdict of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.api import Health


def test_fit(health: Health) -> None:
    """Nothing was found that keeps the node, or all of them together, from training."""
    assert not health.faults, health.explanation
