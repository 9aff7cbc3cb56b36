"""The learning rate of a step, shared by all in-process engines and independent of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.recipe.recipes import Optimizer


def learning_rate(settings: Optimizer, step: int, steps: int) -> float:
    """Rate of a 1-based step: linear up to the peak at `warmup_steps`, linear down to a tenth at `steps`."""
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    done = (step - settings.warmup_steps) / (steps - settings.warmup_steps)
    return settings.learning_rate * (1.0 - 0.9 * done)
