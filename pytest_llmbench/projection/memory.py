"""Memory that a layout needs of each GPU."""

from dataclasses import dataclass

from pytest_llmbench.projection.layout import Layout

_GIB = float(2**30)
# The CUDA context, NCCL's buffers, and what the allocator cannot use: an assumption, no measurement.
OTHER_GIB = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """Memory of the fullest rank, GiB.

    Attributes:
        weights, gradients, states: of its parameters, by the precision; states are split where they are sharded.
        activations: kept for the backward pass, of the first stage, which has the most micro batches under way.
        other: of the runtime, assumed.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    other: float = OTHER_GIB

    @property
    def total(self) -> float:
        """All of it, GiB."""
        return self.weights + self.gradients + self.states + self.activations + self.other

    def missing(self, gib: float) -> float:
        """The excess over a GPU of this size, GiB; 0 where it fits."""
        return max(0.0, self.total - gib)


def memory(layout: Layout) -> MemoryNeed:
    """Add up what the fullest rank needs."""
    return MemoryNeed(
        weights=layout.weight_bytes / _GIB,
        gradients=layout.gradient_bytes / _GIB,
        states=layout.state_bytes / _GIB,
        activations=_kept_bytes_of_a_layer(layout) * _layers_kept(layout) / _GIB,
    )


def _kept_bytes_of_a_layer(layout: Layout) -> float:
    """Memory that a layer keeps of one micro batch, bytes, with attention that keeps no scores (flash, or recomputed).

    Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4, of 16-bit activations: `34 s b h / t`, of which
    `10 s b h` are not split without sequence parallelism; `2 s b h` where the whole layer is recomputed.
    """
    sbh = layout.activation_bytes / 2.0
    if layout.recomputation == "full":
        return 2.0 * sbh
    whole = 10.0 / layout.tensor if layout.sequence_parallel else 10.0
    return sbh * (whole + 24.0 / layout.tensor)


def _layers_kept(layout: Layout) -> float:
    """Layers times micro batches under way on the first stage of the 1F1B schedule: `L (1 + (p - 1) / (p v))`.

    Without chunks, p micro batches of L / p layers are under way. Source: as above, section 4.2.3.
    """
    if layout.chunks == 1:
        return float(layout.layers_per_stage * min(layout.pipeline, layout.micro_batches))
    return layout.model.layers * (1.0 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks))
