"""Time of the communication of a training on measured or published links, s. GB/s is 10⁹ bytes per second."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.curves import Curve, busbw_factor
from pytest_llmbench.projection.layout import Layout
from pytest_llmbench.projection.model import Band, End

# All-reduces of one layer's activations: two of the forward and two of the backward pass. With sequence parallelism
# each is a reduce-scatter and an all-gather, which move as much. Source: Korthikanti et al. 2022 (arXiv:2205.05198).
_ALL_REDUCES = 4
_MORE_WITH_FULL_RECOMPUTATION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLinks:
    """The links that a training would use.

    Attributes:
        curves: measured collectives, each within one node or over several.
        node_gb_s: busbw between the GPUs of one node, GB/s, if there is no curve of that many; None: not known.
        network_gb_s: one GPU's share of its node's network, GB/s, if there is no curve over nodes.
        tensor_exposed: the share of the tensor-parallel ranks' communication that no matrix product hides.
        hidden: the share of the data-parallel ranks' reduction that is done while the backward pass goes on.
        sends_exposed: the share of the sends between stages that nothing hides.
    """

    curves: Sequence[Curve] = ()
    node_gb_s: Band | None = None
    network_gb_s: Band | None = None
    tensor_exposed: Band
    hidden: Band
    sends_exposed: Band

    def collective_s(self, collective: str, size: float, ranks: int, layout: Layout, stride: int, end: End) -> float:
        """How long a collective takes, s.

        Args:
            collective: one of `core.curves.COLLECTIVES`.
            size: as nccl-tests counts it, bytes.
            ranks: how many take part.
            layout: of which training.
            stride: distance of two neighbours among them; between them are as many other groups, which talk at once.
            end: the end of the links' bands.

        Raises:
            ConfigError: such a link was neither measured nor given.
        """
        if ranks == 1 or size <= 0.0:
            return 0.0
        together = min(ranks, max(1, layout.gpus_per_node // stride))  # of this group, on one node
        if together == ranks:
            bandwidth = self._in_node(collective, size, ranks, end)
        else:
            # The node's links are shared by all groups that have a rank on it, each of as many ranks.
            bandwidth = together * self._per_gpu(collective, size * layout.gpus_per_node / together, layout, end)
        return size * busbw_factor(collective, ranks) / (1e9 * bandwidth)

    def tensor_s(self, layout: Layout, end: End) -> float:
        """The part of the messages of tensor-parallel ranks about one layer and micro batch that is not hidden."""
        exposed = self.tensor_exposed.at(end)
        if exposed == 0.0:
            return 0.0
        times = _ALL_REDUCES + (_MORE_WITH_FULL_RECOMPUTATION if layout.recomputation == "full" else 0)
        return exposed * times * self.collective_s("all_reduce", layout.activation_bytes, layout.tensor, layout, 1, end)

    def send_s(self, layout: Layout, end: End) -> float:
        """Activations forward and gradients back over one border of stages, each tensor-parallel rank its part."""
        exposed = self.sends_exposed.at(end)
        if layout.pipeline == 1 or exposed == 0.0:
            return 0.0
        part, stride = layout.activation_bytes / layout.tensor, layout.tensor * layout.data
        return 2.0 * exposed * self.collective_s("sendrecv", part, 2, layout, stride, end)

    def gradients_s(self, layout: Layout, end: End) -> float:
        """The gradients' all-reduce, or, sharded, their reduce-scatter and the weights' all-gather."""
        exposed = 1.0 - self.hidden.at(end)
        if layout.data == 1 or exposed == 0.0:
            return 0.0
        asked = {"all_reduce": layout.gradient_bytes}
        if layout.sharded:
            asked = {"reduce_scatter": layout.gradient_bytes, "all_gather": layout.weight_bytes}
        return exposed * sum(
            self.collective_s(name, size, layout.data, layout, layout.tensor, end) for name, size in asked.items()
        )

    def _in_node(self, collective: str, size: float, ranks: int, end: End) -> float:
        fitting = [curve for curve in self.curves if curve.ranks == ranks and (curve.nodes or 1) == 1]
        known = _bandwidth(fitting, collective, size) or self.node_gb_s
        if known is None:
            raise ConfigError(
                f"unknown: the speed of {collective} between {ranks} GPUs of one node; give a record of it with"
                " --collectives (health record of the check all_reduce, or benchmarks/gpu/collectives.py),"
                " or --node-bandwidth"
            )
        return known.at(end)

    def _per_gpu(self, collective: str, size: float, layout: Layout, end: End) -> float:
        # Two nodes are no measure of a network: NCCL then takes a tree, which moves a part over the node's own links.
        over_nodes = [curve for curve in self.curves if (curve.nodes or 1) > 2]
        found = _bandwidth(over_nodes, collective, size)
        if found is not None:
            return found.at(end) / layout.gpus_per_node
        if self.network_gb_s is None:
            raise ConfigError(
                "unknown: the network between the nodes; give a record of collectives over at least 3 nodes with"
                " --collectives, or what the network has for each GPU with --network, such as '400 Gb/s'"
            )
        return self.network_gb_s.at(end)


def _bandwidth(curves: Iterable[Curve], collective: str, size: float) -> Band | None:
    """Busbw at a size over all curves and places, GB/s; all-reduces speak for what was not measured itself."""
    by_name = {name: [curve for curve in curves if curve.collective == name] for name in (collective, "all_reduce")}
    for chosen in by_name.values():
        values = sorted(value for curve in chosen for value in _at(curve, size))
        if values:
            return Band(best=values[-1], likely=statistics.median(values), worst=values[0])
    return None


def _at(curve: Curve, size: float) -> list[float]:
    """Busbw at a size out of place and in place, along a line over the size's logarithm; beyond the ends, their own."""
    found = []
    for place in ("out_of_place", "in_place"):
        timings = [(point.size, getattr(point, place)) for point in curve.points if point.size > 0]
        known = sorted(
            (each, timing.busbw) for each, timing in timings if timing is not None and 0 < timing.busbw < math.inf
        )
        if known:
            found.append(_along(known, size))
    return found


def _along(points: Sequence[tuple[int, float]], size: float) -> float:
    if size <= points[0][0]:
        return points[0][1] * size / points[0][0]  # a small message takes as long as the smallest one measured
    for (low, slow), (high, fast) in pairwise(points):
        if size <= high:
            share = math.log(size / low) / math.log(high / low)
            return slow + share * (fast - slow)
    return points[-1][1]
