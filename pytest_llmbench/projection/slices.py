"""Measured slices: what one layer costs, from one run or from two of different depth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.projection.layout import Layout, same_work
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.model import ENDS, Band, Costs, End, terms

# With one slice the layers' share of its time is not measured. The head may take this many times what its FLOPs say.
_HEAD = Band(best=2.0, likely=1.0, worst=0.0)
# For each halving of a matrix (of its tokens or of a rank's part of the width) it takes so much longer than half.
# NVIDIA's own weak scaling on H100 goes from 489.1 TFLOP/s with tensor 4 to 459.6 with tensor 8: 6.4 %, communication
# included (Megatron-LM README at 937571cf, images/model_table.png).
HALVING = Band(best=1.0, likely=1.02, worst=1.064)
# What a step waits for the slowest rank: the spread of the medians of three MLPerf v4.1 runs of GPT-3 175B on 256 to
# 1536 H100 is at most 0.64 %, on 3072 it is 2.0 % (mlcommons/training_results_v4.1, NVIDIA and Oracle).
JITTER = Band(best=1.0, likely=1.0064, worst=1.02)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Hardware of the parts of a step, in addition to the slice's own GPUs.

    Attributes:
        links: between GPUs and nodes.
        memory_gb_s: memory bandwidth of a GPU for the optimizer, GB/s.
    """

    links: TrainingLinks
    memory_gb_s: Band

    def optimizer_s(self, layout: Layout, end: End) -> float:
        """Adam reads the gradient, the weight's 32-bit copy and two moments, and writes these three and the weight."""
        moved = layout.gradient_bytes + layout.weight_bytes + 24.0 * layout.parameters_per_gpu
        return moved / (layout.data if layout.sharded else 1) / (1e9 * self.memory_gb_s.at(end))


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCost:
    """The measurements of a layer.

    Attributes:
        layer_s, head_s: as in `Costs`, on that layout, s, at each end: the same assumptions are behind both of one end.
    """

    layout: Layout
    layer_s: Mapping[End, float]
    head_s: Mapping[End, float]

    def costs(self, layout: Layout, hardware: Hardware) -> dict[End, Costs]:
        """Cost of the parts of a step on another layout of GPUs of the same kind.

        Raises:
            ConfigError: a piece that it takes is not known.
        """
        return {end: self._costs(layout, hardware, end) for end in ENDS}

    def _costs(self, layout: Layout, hardware: Hardware, end: End) -> Costs:
        more = layout.gpus > self.layout.gpus
        head = layout.head_flops / self.layout.head_flops * self.layout.tensor / layout.tensor
        return Costs(
            layer_s=self._layer_s(layout, hardware.links, end),
            head_s=self.head_s[end] * head,
            jitter=JITTER.at(end) if more else 1.0,
            **_others(layout, hardware, end),
        )

    def _layer_s(self, layout: Layout, links: TrainingLinks, end: End) -> float:
        slice_, measured = self.layout, self.layer_s[end]
        same = same_work(slice_, layout)
        if same and slice_.recomputation == layout.recomputation:
            return measured
        talk = 0.0 if same else links.tensor_s(slice_, end)
        if talk >= measured:
            raise ConfigError(
                f"the slice's layer takes {1e3 * measured:.4g} ms, and its tensor-parallel communication alone would"
                f" take {1e3 * talk:.4g} ms: the slice and the collectives are not of the same machine"
            )
        share = layout.layer_flops / slice_.layer_flops * slice_.tensor / layout.tensor
        change = recomputed(layout).at(end) / recomputed(slice_).at(end)
        slower = math.pow(HALVING.at(end), _halvings(slice_, layout))
        return (measured - talk) * share * change * slower + (0.0 if same else links.tensor_s(layout, end))


def recomputed(layout: Layout) -> Band:
    """By what recomputation makes a layer longer.

    Full: the forward pass again, a third of forward and backward. Selective: the core of the attention, `4 s h` FLOPs
    a token, which runs at a lower rate than the matrices; the worst end is what Korthikanti et al. count as hardware
    FLOPs (three times that).
    """
    if layout.recomputation == "full":
        return Band.exactly(4.0 / 3.0)
    if layout.recomputation == "none":
        return Band.exactly(1.0)
    h, s = layout.model.hidden_size, layout.sequence_length
    share = 4.0 * h * s * layout.tokens_per_micro_batch / layout.layer_flops
    return Band(best=1.0 + share, likely=1.0 + 2.0 * share, worst=1.0 + 3.0 * share)


def one_slice(layout: Layout, step_s: Band, hardware: Hardware) -> LayerCost:
    """Split a run's step by FLOPs: the rate of its layers is what makes the model's step as long as the measured one.

    The head's share is an assumption, and with few layers the band is wide. The run may be a whole training.

    Raises:
        ConfigError: the rest of the step would take all of it, or a piece is not known.
    """
    found = {end: _solve(layout, step_s, hardware, end) for end in ENDS}
    head = {end: _HEAD.at(end) * _head_share(layout) * found[end] for end in ENDS}
    return LayerCost(layout=layout, layer_s=found, head_s=head)


def two_slices(shallow: Layout, deep: Layout, steps_s: tuple[Band, Band], hardware: Hardware) -> LayerCost:
    """Take the layer's time from the difference of two runs, and the head's from what is left.

    Raises:
        ConfigError: they differ in more than their layers, or contradict each other.
    """
    if replace(shallow, model=deep.model) != deep or shallow.pipeline > 1:
        raise ConfigError(f"two slices may differ in their layers alone, without a pipeline: {shallow}; {deep}")
    cut = deep.model.model_copy(update={"layers": shallow.model.layers})
    if shallow.model.layers >= deep.model.layers or shallow.model != cut:
        raise ConfigError("two slices need the same width and different numbers of layers")
    less, more = steps_s
    layers, m = deep.model.layers - shallow.model.layers, shallow.micro_batches
    opposite: Mapping[End, End] = {"best": "worst", "likely": "likely", "worst": "best"}
    outside = {(each, end): _outside(each, hardware, end) for each in (shallow, deep) for end in ENDS}

    def layer(end: End) -> float:
        rest = outside[deep, "likely"] - outside[shallow, "likely"]
        return (more.at(end) - less.at(opposite[end]) - rest) / (m * layers)

    if min(layer(end) for end in ENDS) <= 0.0:
        raise ConfigError(
            f"{deep.model.layers} layers in {more} s and {shallow.model.layers} in {less} s: the difference is not"
            " larger than the spread; measure longer, or with more layers"
        )

    def head(end: End) -> float:
        return (less.at(end) - outside[shallow, opposite[end]]) / m - shallow.model.layers * layer(opposite[end])

    if head("worst") < -1e-9 * less.likely:  # even at the end that leaves most to the head
        raise ConfigError(
            f"{shallow.model.layers} layers alone would take longer than the slice of them: the two slices contradict"
            " each other; measure both again in one session"
        )
    return LayerCost(
        layout=shallow, layer_s={end: layer(end) for end in ENDS}, head_s={end: max(0.0, head(end)) for end in ENDS}
    )


def _head_share(layout: Layout) -> float:
    return layout.head_flops / layout.layer_flops


def _halvings(measured: Layout, layout: Layout) -> float:
    """How often the matrices of a rank were halved, at most; larger ones are not taken to be better."""
    tokens = measured.tokens_per_micro_batch / layout.tokens_per_micro_batch
    width = (measured.model.hidden_size / measured.tensor) / (layout.model.hidden_size / layout.tensor)
    return max(0.0, math.log2(tokens)) + max(0.0, math.log2(width))


def _others(layout: Layout, hardware: Hardware, end: End) -> dict[str, float]:
    """Cost of a step in addition to its layers and its head."""
    return {
        "send_s": hardware.links.send_s(layout, end),
        "gradients_s": hardware.links.gradients_s(layout, end),
        "optimizer_s": hardware.optimizer_s(layout, end),
    }


def _outside(layout: Layout, hardware: Hardware, end: End) -> float:
    return terms(layout, Costs(layer_s=0.0, head_s=0.0, jitter=1.0, **_others(layout, hardware, end)))["step"]


def _solve(layout: Layout, step_s: Band, hardware: Hardware, end: End) -> float:
    """The layer's time: a step is linear in it."""
    others = _others(layout, hardware, end)
    head = _HEAD.at(end) * _head_share(layout)
    without = _outside(layout, hardware, end)
    a_second = terms(layout, Costs(layer_s=1.0, head_s=head, jitter=1.0, **others))["step"]
    if step_s.at(end) <= without:
        raise ConfigError(
            f"a step of {step_s.at(end):.6g} s is not longer than its work outside the layers, {without:.6g} s:"
            " the step time or the links are wrong"
        )
    return (step_s.at(end) - without) / (a_second - without)
