"""Feasibility of a run before it: its time, and the share of the GPUs' published peak that a reference's bound needs.

Both count model FLOPs alone; a run that recomputes activations has less of the peak left for them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.judging.flops import causal_flops_per_token, flops_per_token
from pytest_llmbench.judging.statistics import TOKENS_OF_RECORD, Speed, Statistic

# A bound above this share of the peak gets a warning. Korthikanti et al. 2022 ("Reducing Activation Recomputation in
# Large Transformer Models") report 56 % for models of up to a trillion parameters on A100.
ATTAINABLE = 0.65
_ATTAINED = f"{100 * ATTAINABLE:g} % of it"
# The expected duration of a run is that at this share of the peak. On one node of H200, models of 125M to 13B have 44 %
# to 60 %; OPT-175B had 47 % on 992 A100 (Zhang et al. 2022); with more nodes, and all activations recomputed, less.
PLAUSIBLE = 0.4

_TIMES: frozenset[Speed] = frozenset({"seconds_per_step", "seconds_for_20m_tokens"})
_PER_GPU: frozenset[Speed] = frozenset({"tokens_per_s_per_gpu", "model_flops_per_s_per_gpu", "share_of_peak"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The published peak of the GPUs that a recipe would run on; `tflops_per_gpu` is that of one at its precision."""

    recipe: Recipe
    topology: Topology
    gpu: str
    tflops_per_gpu: float

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of all GPUs together."""
        return 1e12 * self.tflops_per_gpu * self.topology.gpus

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of one token of the recipe."""
        return flops_per_token(self.recipe.model, self.recipe.sequence_length)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step on this topology."""
        return self.recipe.on(self.topology).tokens_per_step

    def minutes(self, share: float = 1.0) -> float:
        """Duration of all steps at a share of the peak."""
        return self.recipe.steps * self.tokens_per_step * self.flops_per_token / (share * self.flops_per_s) / 60

    @property
    def least_minutes(self) -> float:
        """Duration of all steps at the peak, where attention leaves out the half of its FLOPs that causality masks."""
        causal = causal_flops_per_token(self.recipe.model, self.recipe.sequence_length)
        return self.minutes() * causal / self.flops_per_token

    @property
    def limit(self) -> str:
        """The throughput at the peak and at the attainable share of it, as words for a message."""
        most = self.flops_per_s / self.flops_per_token
        hoped_for = f"{for_people(ATTAINABLE * most)} at {_ATTAINED}"
        return f"at most {for_people(most)} words/s at the published peak of {self}, {hoped_for}"

    def __str__(self) -> str:
        return f"{self.topology.gpus} × {self.gpu} ({_rate(self.flops_per_s)}, {self.recipe.precision})"


# FLOP/s of all GPUs that follow from a value in the base unit of its dimension.
_FLOPS_PER_S: Mapping[Speed, Callable[[float, Peak], float]] = {
    "tokens_per_s": lambda value, peak: value * peak.flops_per_token,
    "samples_per_s": lambda value, peak: value * peak.recipe.sequence_length * peak.flops_per_token,
    "seconds_per_step": lambda value, peak: _per_second(peak.tokens_per_step, value) * peak.flops_per_token,
    "seconds_for_20m_tokens": lambda value, peak: _per_second(TOKENS_OF_RECORD, value) * peak.flops_per_token,
    "tokens_per_s_per_gpu": lambda value, peak: value * peak.topology.gpus * peak.flops_per_token,
    "model_flops_per_s_per_gpu": lambda value, peak: value * peak.topology.gpus,
    "share_of_peak": lambda value, peak: value * peak.flops_per_s,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Speed that one bound (operator and value) of a reference needs from the GPUs.

    `share` is that of the published peak of all GPUs of the run; above 1 the bound is impossible. `nodes` is the number
    of nodes at their peak with this speed, unrounded; None if more nodes would be useless, as the bound is per GPU or
    the batch grows with the ranks.
    """

    reference: str
    bound: str
    share: float
    nodes: float | None
    peak: Peak

    @property
    def impossible(self) -> bool:
        """True if the bound needs more than the published peak."""
        return self.share > 1.0 + 1e-9

    @property
    def bold(self) -> bool:
        """True if the bound needs more than the attainable share of the peak."""
        return self.share > ATTAINABLE + 1e-9

    def nodes_at(self, share: float) -> int | None:
        """Nodes needed if each reaches this share of its peak; None if any number of nodes is too few."""
        if self.nodes is None or not math.isfinite(self.nodes):
            return None
        return max(1, math.ceil(self.nodes / share - 1e-9))

    def __str__(self) -> str:
        percent = f"{100 * self.share:.4g} % of"
        how_much = f"{self.share:.3g} times" if self.share >= 1.01 else percent
        asked = f"{self.bound} needs {_rate(self.share * self.peak.flops_per_s)}"
        where, nodes, takes = f"{self.peak.recipe.name}-{self.reference}", self.nodes_at(1.0), ""
        if nodes is not None:
            more = f"{self.nodes_at(ATTAINABLE)} at {_ATTAINED}"
            takes = f"it would take at least {counted(nodes, 'node')} at their peak, {more}"
        takes = takes or "more nodes would not change that"
        return f"{where}: {asked}, {how_much} the published peak of {self.peak}: {takes}"


def demand(reference: Reference, statistic: Statistic, peak: Peak) -> Demand | None:
    """Compare a reference with the peak; None if its statistic is unrelated to speed or its bound is an upper limit."""
    speed = statistic.speed
    bound = reference.at_most if speed in _TIMES else reference.at_least
    if speed is None or bound is None:
        return None
    share = _FLOPS_PER_S[speed](bound.base, peak) / peak.flops_per_s
    grows = speed == "seconds_per_step" and peak.recipe.gradient_accumulation_steps is not None
    op, nodes = "<=" if speed in _TIMES else ">=", None
    if not grows and speed not in _PER_GPU:
        nodes = share * peak.topology.nodes
    return Demand(reference=reference.name, bound=f"{op} {bound}", share=share, nodes=nodes, peak=peak)


def _per_second(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else math.inf


def _rate(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e15:.4g} PFLOP/s" if flops_per_s >= 1e15 else f"{flops_per_s / 1e12:.4g} TFLOP/s"
