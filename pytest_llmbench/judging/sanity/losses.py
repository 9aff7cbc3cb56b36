"""Whether losses and gradients are those of a training."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_llmbench.core.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence

# Losses of a few noisy steps may wander; a training that ends this far above its start went wrong.
_LOSS_RISE_NAT = 0.05


def finite(e: Evidence) -> Iterator[Problem]:
    """Refuse a loss or a gradient norm that is not finite."""
    for step in e.series.steps:
        for name, value in (("loss", step.loss), ("grad norm", step.grad_norm)):
            if value is not None and not math.isfinite(value):
                yield Problem(kind="not_finite", message=f"{name} is {value} at step {step.step}")


def falling(e: Evidence) -> Iterator[Problem]:
    """Refuse a loss that rises."""
    losses = [step.loss for step in e.series.steps if step.loss is not None]
    if not losses:
        return
    tail = losses[-max(1, len(losses) // 4) :]
    last = sum(tail) / len(tail)  # math.fsum raises where the sum is infinite
    if last > losses[0] + _LOSS_RISE_NAT:
        first = next(step.step for step in e.series.steps if step.loss is not None)
        yield Problem(
            kind="loss_rises",
            message=f"the loss rose from {losses[0]:.4g} at step {first} to {last:.4g} over the last quarter: it does "
            f"not train",
        )
