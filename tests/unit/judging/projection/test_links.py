"""What communication takes on paper: rings, shared links, measured curves, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.curves import Curve, Point, timing
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.model import ENDS, Band

from .test_model import GPT

MIB = 2**20
HALF = TrainingLinks(
    node_gb_s=Band.exactly(400.0), network_gb_s=Band(best=48.0, likely=40.0, worst=25.0),
    tensor_exposed=Band.exactly(1.0), hidden=Band.exactly(0.5), sends_exposed=Band.exactly(0.5),
)  # fmt: skip
UNKNOWN = replace(HALF, node_gb_s=None, network_gb_s=None)


def curve(busbw: dict[int, float], ranks: int = 8, nodes: int = 1, collective: str = "all_reduce") -> Curve:
    """A measured curve, out of place as fast as said and in place half a GB/s less."""
    factor = 2 * (ranks - 1) / ranks
    points = tuple(
        Point(
            size=size, count=size // 4, dtype="float32", redop="sum",
            out_of_place=timing(collective, size, ranks, size * factor / speed / 1e3, 0),
            in_place=timing(collective, size, ranks, size * factor / (speed - 0.5) / 1e3, 0),
        )
        for size, speed in busbw.items()
    )  # fmt: skip
    return Curve(collective=collective, points=points, ranks=ranks, nodes=nodes, gpus=ranks, complete=True)


def test_a_ring_in_a_node() -> None:
    """Bytes × 2 (r - 1) / r by busbw; alone nobody talks."""
    found = HALF.collective_s("all_reduce", 100e6, 8, GPT, 1, "likely")
    assert found == pytest.approx(100e6 * 1.75 / 400e9)
    assert UNKNOWN.collective_s("all_reduce", 100e6, 1, GPT, 1, "likely") == 0.0


def test_groups_share_a_nodes_links() -> None:
    """Eight groups with one GPU on each node have one line each; a group of all GPUs has all; half of them half."""
    for stride, line in ((8, 40.0), (1, 320.0), (2, 160.0)):
        found = HALF.collective_s("reduce_scatter", 1e9, 16, GPT, stride, "likely")
        assert found == pytest.approx(1e9 * 15 / 16 / (line * 1e9)), stride


def test_tensor_parallel_ranks_say_four_things() -> None:
    """Four all-reduces of s b h of 2 bytes, on two nodes of 4 GPUs over 4 lines; two more to recompute whole layers."""
    size = 2 * 2048 * 12288
    assert HALF.tensor_s(GPT, "likely") == pytest.approx(4 * size * 1.75 / 400e9)
    assert HALF.tensor_s(replace(GPT, gpus_per_node=4), "likely") == pytest.approx(4 * size * 1.75 / 160e9)
    assert HALF.tensor_s(replace(GPT, recomputation="full"), "likely") == pytest.approx(6 * size * 1.75 / 400e9)
    assert replace(HALF, tensor_exposed=Band.exactly(0.0)).tensor_s(GPT, "likely") == 0.0


def test_gradients_are_reduced() -> None:
    """4 bytes a parameter scattered and 2 gathered where the state is split, else 4 reduced; half of it is hidden."""
    layout = replace(GPT, data=4)
    moved = layout.parameters_per_gpu * 0.75 / 40e9
    assert HALF.gradients_s(layout, "likely") == pytest.approx(0.5 * (4 + 2) * moved)
    assert HALF.gradients_s(replace(layout, sharded=False), "likely") == pytest.approx(0.5 * 2 * 4 * moved)
    assert UNKNOWN.gradients_s(GPT, "likely") == 0.0, "one copy"


def test_stages_send_their_part() -> None:
    """Forward and back, an eighth of the activations over one line; half of it is hidden."""
    assert HALF.send_s(GPT, "likely") == pytest.approx(0.5 * 2 * (2 * 2048 * 12288 / 8) / 40e9)
    assert UNKNOWN.send_s(replace(GPT, pipeline=1), "likely") == 0.0


def test_a_measured_curve_goes_before_a_given_number() -> None:
    """The two places are its ends; between two sizes it is in between; beyond them as at them."""
    links = replace(HALF, curves=[curve({MIB: 100.0, 4 * MIB: 200.0})])
    for size, speed in ((MIB, 99.75), (2 * MIB, 149.75), (4 * MIB, 199.75), (64 * MIB, 199.75)):
        found = links.collective_s("all_reduce", size, 8, GPT, 1, "likely")
        assert found == pytest.approx(size * 1.75 / (speed * 1e9), rel=1e-6), size
    small = links.collective_s("all_reduce", 8, 8, GPT, 1, "likely")
    assert small == pytest.approx(links.collective_s("all_reduce", MIB, 8, GPT, 1, "likely"))
    assert links.collective_s("all_reduce", MIB, 8, GPT, 1, "best") < links.collective_s(
        "all_reduce", MIB, 8, GPT, 1, "worst"
    )


def test_a_curve_of_other_ranks_says_nothing() -> None:
    """Nor does one of two nodes say what a network of many gives; one of three does, to all GPUs of a node."""
    with pytest.raises(ConfigError, match="between 8 GPUs of one node"):
        replace(UNKNOWN, curves=[curve({MIB: 100.0}, ranks=4)]).tensor_s(GPT, "likely")
    layout = replace(GPT, data=4)
    with pytest.raises(ConfigError, match="the network between the nodes"):
        replace(UNKNOWN, curves=[curve({MIB: 300.0}, ranks=16, nodes=2)]).gradients_s(layout, "likely")
    links = replace(UNKNOWN, curves=[curve({MIB: 300.5}, ranks=24, nodes=3)])
    assert links.gradients_s(layout, "worst") == pytest.approx(
        0.5 * 6 * layout.parameters_per_gpu * 0.75 / (300.0 / 8 * 1e9)
    )


@pytest.mark.parametrize("what", ["tensor_s", "send_s", "gradients_s"])
def test_what_is_not_known_is_named(what: str) -> None:
    """With the options that say it."""
    with pytest.raises(ConfigError, match=r"unknown: .*--(network|node-bandwidth)"):
        getattr(UNKNOWN, what)(replace(GPT, data=2), "likely")


@given(st.floats(1.0, 1e3), st.floats(1.0, 1e3))
def test_a_faster_network_is_never_slower(one: float, other: float) -> None:
    """Of whatever goes over it, at each end."""
    slow, fast = sorted((one, other))
    links = [replace(HALF, network_gb_s=Band.exactly(speed)) for speed in (fast, slow)]
    layout = replace(GPT, data=2)
    for end in ENDS:
        assert links[0].gradients_s(layout, end) <= links[1].gradients_s(layout, end)
        assert links[0].send_s(layout, end) <= links[1].send_s(layout, end)
