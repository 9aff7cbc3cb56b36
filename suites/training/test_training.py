"""Training: every recipe runs once, and each of its references is one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.api import Reference, Run


@pytest.mark.recipe("*")
def test_reference(run: Run, reference: Reference) -> None:
    """The statistic lies within the bounds that were set for this recipe on this kind of machine."""
    assert run.measured(reference.statistic) in reference
