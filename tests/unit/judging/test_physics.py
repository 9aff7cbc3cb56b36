"""The law of physics and the count of NICs, held against published and own values: one NIC too many accuses."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.environments import Network
from pytest_llmbench.core.wire.machine import MachineFacts
from pytest_llmbench.judging import physics
from pytest_llmbench.judging.nics import Nics, count_nics
from pytest_llmbench.judging.physics import Links, NoLaw, PhysicsBound, PhysicsResult
from tests.support.hardware import node, port

DATA = Path(__file__).parents[2] / "data" / "physics"
ROWS = [row for file in sorted(DATA.glob("*.csv")) for row in csv.DictReader(file.read_text("utf-8").splitlines())]
H200 = Links(4, 18, nvls=True)


def read_fact(name: str, text: str) -> Any:
    if name == "capability" or not text[0].isdigit():
        return text
    return float(text) if "." in text else int(text)


def expect(row: dict[str, str]) -> PhysicsResult:
    """Ask the law of a row."""
    facts = {name: read_fact(name, text) for name, text in (fact.split("=") for fact in row["facts"].split())}
    size = facts.pop("size", None)
    if row["law"] in {"in_domain", "between"}:
        links = {name: facts.pop(name) for name in Links._fields if name in facts}
        facts["inside"] = Links(**{**links, "nvls": bool(links.get("nvls"))})
    if row["law"] == "products":
        facts["name"] = ""
    e: PhysicsResult = getattr(physics, f"expect_{row['law']}")(**facts)
    return physics.at_size(size, e) if size else e


def verdict(row: dict[str, str]) -> str:
    value, e = float(row["measured"]), expect(row)
    assert isinstance(e, PhysicsBound), (row, e)
    assert e.fail <= e.warn <= e.expected
    return "FAIL" if value < e.fail else "WARN" if value < e.warn else "PASS"


def test_no_healthy_value_fails_and_each_fault_fails_or_warns() -> None:
    assert len(ROWS) >= 419
    verdicts = [(row, verdict(row)) for row in ROWS]
    assert [row for row, judged in verdicts if judged != row["verdict"]] == []
    assert [row for row, judged in verdicts if row["kind"] == "ok" and judged == "FAIL"] == []
    assert [row for row, judged in verdicts if row["kind"] == "bad" and judged == "PASS"] == []
    counts = Counter((row["kind"], judged) for row, judged in verdicts)
    assert counts["bad", "FAIL"] > 5 * counts["bad", "WARN"]


@pytest.mark.parametrize("scale", [0.96, 1.04])
def test_the_margin(scale: float) -> None:
    """Values that are 4 % lower or higher change few verdicts on health."""
    moved = [(row["kind"], verdict({**row, "measured": str(scale * float(row["measured"]))})) for row in ROWS]
    assert moved.count(("ok", "FAIL")) <= 3
    assert moved.count(("bad", "PASS")) <= 2


@pytest.mark.parametrize("e", [
    physics.expect_products("NVIDIA GeForce RTX 5090", "12.0", 170, 2407, "bf16"),
    physics.expect_products("NVIDIA H20", "9.0", 78, 1980, "bf16"),
    physics.expect_products("NVIDIA A100", "8.0", 108, 1410, "fp8"),
    physics.expect_products("NVIDIA H200", "9.0", None, 1980, "bf16"),
    physics.expect_products("NVIDIA H100 NVL", "9.0", 132, 1980, "bf16", default_power_w=400.0),
    physics.expect_products("NVIDIA H100 PCIe", "9.0", 114, 1755, "bf16"),
    physics.expect_memory(0, None),
    physics.expect_memory(256, 5001, capability="7.5"),
    physics.expect_between("alltoall", 17, 8, 400.0, H200),
    physics.of_parts(physics.expect_between("all_gather", 125, 8, 400.0, H200), 2**32, 1000, None),
    physics.expect_host_copy(1, 16),
    physics.expect_in_domain("all_reduce", 8, Links(6, 18, nvls=True)),
    physics.expect_in_domain("all_reduce", 8, Links()),
    physics.at_size(2**29, physics.expect_in_domain("all_reduce", 4, Links(4, 18))),
])  # fmt: skip
def test_unknown_hardware_and_small_messages_have_no_law(e: PhysicsResult) -> None:
    assert isinstance(e, NoLaw)
    assert str(e).startswith("not judged by physics: ")


def test_a_bound_says_how_it_was_computed() -> None:
    h200 = physics.expect_in_domain("all_reduce", 8, H200)
    assert str(h200) == "476.4 GB/s, FAIL below 357.3: 0.605 of 18 NVLinks × 25 GB/s × 2(8-1)/8, as NVLS does"
    assert str(physics.at_size(2**30, physics.expect_in_domain("all_reduce", 4, Links(4, 18)))) == (
        "278.8 GB/s, FAIL below 209.1: 0.8 for its size of 0.94 of 18 NVLinks × 20.6 GB/s, as rings do"
    )
    assert str(physics.expect_products("NVIDIA H200", "9.0", 132, 1980, "bf16")) == (
        "669.1 TFLOP/s, FAIL below 568.7: 0.625 of 132 SMs × 4096 × 1980 MHz = 1071 TFLOP/s"
    )


@pytest.mark.parametrize("nodes", [2, 16, 125, 1250])
def test_tcp_in_place_of_infiniband_fails_at_any_number_of_nodes(nodes: int) -> None:
    for op in ("all_reduce", "all_gather", "sendrecv"):
        e = physics.expect_between(op, nodes, 8, 400.0, H200)
        assert isinstance(e, PhysicsBound)
        assert e.fail > 3.0
    halved = physics.oversubscribed(physics.expect_between("all_reduce", nodes, 8, 400.0, H200), 2.0)
    assert isinstance(halved, PhysicsBound)
    assert halved.how.endswith("oversubscribed 2 : 1")


def test_a_curve_that_still_rises_is_not_saturated() -> None:
    growth = physics.growth_of_doubling((2**34, 654.0), (2**36, 751.0))  # p6-b300
    assert growth == pytest.approx(0.0716, abs=1e-3)
    rings = physics.expect_in_domain("all_gather", 8, Links(5, 18))
    rising, flat = physics.unsaturated(rings, growth), physics.unsaturated(rings, 0.02)
    assert isinstance(rings, PhysicsBound)
    assert isinstance(rising, PhysicsBound)
    assert flat == rings
    assert rising.fail == pytest.approx(rings.fail / 1.23, rel=1e-2)
    assert rising.warn == rings.warn
    assert "not saturated: the last doubling of the size added 7.2%" in rising.how


ETHERNET: dict[str, Any] = {"link_layer": "Ethernet", "model": "0x15b3:0x101d"}
FAR: dict[str, Any] = {"root_port": "0000:ff:01.0"}


def ports(*extra: Any, near: int = 8, **changes: Any) -> MachineFacts:
    return node(nics=0, ports=(*(port(number) for number in range(near)), *extra), **changes)


@pytest.mark.parametrize(("facts", "count", "rate", "share"), [
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
])  # fmt: skip
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


@pytest.mark.parametrize(("facts", "reason"), [
    (node(), "no RDMA device"),
    (node(driverless={"0000:01:00.0": None}), "1 InfiniBand or EFA card without a driver"),
    (node(ports=(port(0, virtual=True),)), "virtual functions"),
    (node(ports=(port(0, 10), port(1, 10))), "no port of an RDMA device is active with a rate"),
    (node(ports=(port(0, state="DOWN"),)), "no port of an RDMA device is active"),
    (node(ports=(port(0, 100, link_layer="Unspecified"),)), "EFA devices of 100 Gb/s"),
])  # fmt: skip
def test_what_cannot_be_counted_is_not_judged(facts: MachineFacts, reason: str) -> None:
    nics = count_nics(facts)
    assert isinstance(nics, NoLaw)
    assert reason in nics.reason
