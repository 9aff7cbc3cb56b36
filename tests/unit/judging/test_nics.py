"""Counting the NICs of a node that carry collectives. One too many accuses healthy clusters."""

from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Network
from pytest_llmbench.core.wire.machine import MachineFacts
from pytest_llmbench.judging.nics import Nics, count_nics
from pytest_llmbench.judging.physics import NoLaw
from tests.support.hardware import node, port

ETHERNET: dict[str, Any] = {"link_layer": "Ethernet", "model": "0x15b3:0x101d"}
FAR: dict[str, Any] = {"root_port": "0000:ff:01.0"}


def ports(*extra: Any, near: int = 8, **changes: Any) -> MachineFacts:
    return node(nics=0, ports=(*(port(number) for number in range(near)), *extra), **changes)


@pytest.mark.parametrize(
    ("facts", "count", "rate", "share"),
    [
        (ports(), 8, 400, "between"),
        # The front end, a storage NIC behind the processor, and a second card below one root port.
        (ports(port(8, 200, **ETHERNET)), 8, 400, "between"),
        (ports(port(8, **FAR)), 8, 400, "between"),
        (ports(port(8, root_port="0000:00:01.0"), port(9, root_port="0000:01:01.0")), 8, 400, "between"),
        (ports(port(8, 400, **ETHERNET, **FAR), near=8), 8, 400, "between"),
        # 400 G RoCE in addition to four ports of 800 G.
        (node(ports=(*(port(n, 800, pcie_gen=6) for n in range(4)), *(port(n, **ETHERNET) for n in (4, 5)))),
         4, 800, "between"),
        # A port that is down reports 10 Gb/s, and is one of them all the same.
        (ports(port(7, 10, state="DOWN"), near=7), 8, 400, "between"),
        # The second port of a card without a cable, and a spare card.
        (ports(port(0, 10, state="DOWN", port=2)), 8, 400, "between"),
        (ports(port(9, 10, state="DOWN", **FAR)), 8, 400, "between"),
        (ports(near=7), 7, 400, "between"),
        (ports(near=4), 4, 400, "between"),
        # Behind the processor, and in a virtual machine, where all seem to be.
        (node(ports=tuple(port(n, 200, **FAR) for n in range(4))), 4, 200, "behind_cpu"),
        (node(virtual=True, root_ports={}, ports=tuple(port(n, root_port=None) for n in range(8))), 8, 400, "between"),
        # A port cannot beat its own slot.
        (node(ports=tuple(port(n, 200, pcie_gen=3) for n in range(8))), 8, 113.472, "between"),
        (node(product="p4d.24xlarge"), 4, 100, "efa_v1"),
        (node(product="p5en.48xlarge", ports=(port(0, 100, link_layer="Unspecified"),)), 16, 200, "between"),
    ],
)  # fmt: skip
def test_nics_of_a_node(facts: MachineFacts, count: int, rate: float, share: str) -> None:
    nics = count_nics(facts)
    assert isinstance(nics, Nics), nics
    assert (nics.count, round(nics.rate_gbits, 3), nics.share) == (count, rate, share)


def test_the_file_of_the_system_comes_first_and_nccl_may_contradict() -> None:
    stated = Network(nics_per_node=4, rate_gbits=200)
    assert str(count_nics(ports(), stated)) == "4 NICs × 200 Gb/s = 100 GB/s (by the system's file)"
    assert str(count_nics(ports(), Network(nics_per_node=4))) == (
        "4 NICs × 400 Gb/s = 200 GB/s (number by the system's file, rate by sysfs)"
    )
    assert str(count_nics(node(), stated, "p4de.24xlarge")).startswith("4 NICs × 200")
    assert str(count_nics(ports())) == "8 NICs × 400 Gb/s = 400 GB/s (InfiniBand near the GPUs by sysfs)"
    assert isinstance(count_nics(ports(), used=8), Nics)
    assert isinstance(count_nics(ports(), used=3), Nics)
    assert isinstance(count_nics(ports(), used=9), NoLaw)


def test_a_down_port_is_named() -> None:
    nics = count_nics(ports(port(7, 10, state="DOWN"), near=7))
    assert isinstance(nics, Nics)
    assert nics.down == ("mlx5_7",)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (node(), "no RDMA device"),
        (node(driverless={"0000:01:00.0": None}), "1 InfiniBand or EFA card without a driver"),
        (node(ports=(port(0, virtual=True),)), "virtual functions"),
        (node(ports=(port(0, 10), port(1, 10))), "no port of an RDMA device is active with a rate"),
        (node(ports=(port(0, state="DOWN"),)), "no port of an RDMA device is active"),
        (node(ports=(port(0, 100, link_layer="Unspecified"),)), "EFA devices of 100 Gb/s"),
    ],
)
def test_what_cannot_be_counted_is_not_judged(facts: MachineFacts, reason: str) -> None:
    nics = count_nics(facts)
    assert isinstance(nics, NoLaw)
    assert reason in nics.reason
