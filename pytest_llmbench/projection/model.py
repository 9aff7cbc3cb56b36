"""Projection: how fast a training would be on many nodes, on paper, from measured pieces.

The step of one copy of the model is m micro batches through p stages of L / p layers each, then the reduction of the
gradients and the optimizer. Every term is seconds per step; they add up to the step. docs/projection.md has the
formulas, what they leave out, and how far they were off where published numbers could be had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.projection.layout import Layout

End = Literal["best", "likely", "worst"]
ENDS: tuple[End, ...] = ("best", "likely", "worst")
_TOKENS_OF_RECORD = 20_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A number and the two ends that it is believed to lie between, by what they do to the speed of a training.

    Attributes:
        best: the end at which the training is fastest; of a time the smallest, of a bandwidth the largest.
        likely: in between.
        worst: the other end.

    Raises:
        ValueError: one of them is not finite, or `likely` is not between the ends.
    """

    best: float
    likely: float
    worst: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.best, self.likely, self.worst)):
            raise ValueError(f"{self} is not finite: a missing piece gives no number")
        if not min(self.best, self.worst) <= self.likely <= max(self.best, self.worst):
            raise ValueError(f"{self} does not hold its middle")

    @classmethod
    def exactly(cls, value: float) -> Band:
        """A number without a doubt."""
        return cls(best=value, likely=value, worst=value)

    @classmethod
    def each(cls, value: Callable[[End], float]) -> Band:
        """Ask for the three; what lies outside of its ends widens them, the smallest first."""
        low, likely, high = value("best"), value("likely"), value("worst")
        return cls(best=min(low, likely, high), likely=likely, worst=max(low, likely, high))

    def at(self, end: End) -> float:
        """The number at one end, or in the middle."""
        return {"best": self.best, "likely": self.likely, "worst": self.worst}[end]

    def __str__(self) -> str:
        return f"{self.likely:.6g} ({self.best:.6g} to {self.worst:.6g})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Times of the parts of a step on one layout, at one end of the band.

    Attributes:
        layer_s: one layer for one micro batch, forward and backward, with what is recomputed and with the
            communication of its tensor-parallel ranks, s.
        head_s: embedding, output layer and loss for one micro batch, s.
        send_s: visible time of sending one micro batch's activations and gradients over one border of stages, s.
        gradients_s: visible time of the data-parallel ranks' reduction per step, s.
        optimizer_s: the optimizer's step, s.
        jitter: by what a step is longer because it waits for the slowest of all ranks, at least 1.
    """

    layer_s: float
    head_s: float
    send_s: float
    gradients_s: float
    optimizer_s: float
    jitter: float


def bubble(pipeline: int, micro_batches: int, chunks: int = 1) -> float:
    """The time that a stage waits per step, as a share of the time that it works: `(p - 1) / (v m)`.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
    (arXiv:2104.04473), section 2.2: p stages, m micro batches, v chunks of layers of each stage.
    """
    return (pipeline - 1) / (chunks * micro_batches)


def terms(layout: Layout, costs: Costs) -> dict[str, float]:
    """Parts of a step, s; `step` is their sum.

    The last stage has the head in addition to its layers, and all others wait for it, micro batch after micro batch.
    While the pipeline fills and drains, a stage waits for the others: 1 / v of their time for one micro batch, v
    chunks.
    """
    p, v, m = layout.pipeline, layout.chunks, layout.micro_batches
    borders = v if p > 1 else 0
    stage = layout.layers_per_stage * costs.layer_s + borders * costs.send_s
    parts = {
        "layers": m * layout.layers_per_stage * costs.layer_s,
        "head": m * costs.head_s,
        "sends": m * borders * costs.send_s,
        "bubble": bubble(p, m, v) * m * stage,
        "gradients": costs.gradients_s,
        "optimizer": costs.optimizer_s,
    }
    parts["jitter"] = (costs.jitter - 1.0) * sum(parts.values())
    return {**parts, "step": sum(parts.values())}


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """The predicted speed of one layout.

    Attributes:
        terms: seconds per step by name, at each end.
        step_s: their sum.
    """

    layout: Layout
    terms: Mapping[End, Mapping[str, float]]
    step_s: Band

    @property
    def tokens_per_s(self) -> Band:
        """Tokens of all ranks per second; the best end is the largest."""
        tokens = self.layout.tokens_per_step
        return Band(**{end: tokens / self.step_s.at(end) for end in ENDS})

    @property
    def seconds_for_20m_tokens(self) -> Band:
        """JSC's time to report, s."""
        return Band.each(lambda end: _TOKENS_OF_RECORD / self.tokens_per_s.at(end))

    def calibrated(self, error: float) -> Band:
        """The likely rate, tokens/s, and what it would be if it were off by as much as the worst of the checks.

        `error` is the largest of |predicted / published - 1|.
        """
        likely = self.tokens_per_s.likely
        return Band(best=likely / (1.0 - error), likely=likely, worst=likely / (1.0 + error))


def project(layout: Layout, costs: Mapping[End, Costs]) -> Projection:
    """Predict a layout's speed from what its parts cost at each end.

    Raises:
        ValueError: a cost is not finite, or none is known.
    """
    parts = {end: terms(layout, costs[end]) for end in ENDS}
    if min(part["step"] for part in parts.values()) <= 0.0:
        raise ValueError(f"a step of {layout} would take no time: a piece is missing")
    return Projection(layout=layout, terms=parts, step_s=Band.each(lambda end: parts[end]["step"]))
