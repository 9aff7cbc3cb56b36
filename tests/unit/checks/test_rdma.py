"""RDMA ports in captured trees of sysfs, before and after a load, and their rates by a stand-in for perftest."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.checks.machine import Machines, ask_machines
from pytest_llmbench.checks.network.nodes.write_bw import _ROW
from pytest_llmbench.checks.network.ports import add_ports
from pytest_llmbench.checks.rdma.ports import judge_gains, judge_ports
from pytest_llmbench.core.record.health import Finding, Report
from pytest_llmbench.core.wire.machine import MachineFacts
from pytest_llmbench.workloads.node.rdma import find_driverless, read_ports
from tests.standins import perftest
from tests.standins.sysfs import write_port, write_sysfs
from tests.support.fleet import ProcessFleet, cpu_site
from tests.support.hardware import node, port
from tests.support.references import reference

DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
HALF = {"rate": "200 Gb/sec (2X NDR)"}
EFA = {"link_layer": "Unspecified", "board_id": None, "pkeys__0": None, "counters__symbol_error": None,
       "rate": "100 Gb/sec (4X EDR)"}  # fmt: skip
Changes = Mapping[tuple[int, int], Mapping[str, Any]]  # of a port, by node and device


def read_rdma(root: Path) -> MachineFacts:
    return MachineFacts(ports=tuple(read_ports(root)), driverless=find_driverless(root))


def sysfs_node(root: Path, devices: int, changes: Mapping[int, Mapping[str, Any]], **common: Any) -> MachineFacts:
    root.mkdir(parents=True, exist_ok=True)
    for device in range(devices):
        write_port(root, f"mlx5_{device}", **{**common, **changes.get(device, {})})
    return read_rdma(root)


def nodes(folder: Path, count: int, changes: Changes, devices: int = 8, **common: Any) -> dict[str, MachineFacts]:
    return {
        f"n{number}": sysfs_node(
            folder / f"n{number}", devices,
            {device: change for (host, device), change in changes.items() if host == number}, **common,
        )
        for number in range(count)
    }  # fmt: skip


def told(findings: Sequence[Finding]) -> list[tuple[str | None, str, str]]:
    return [(finding.host, finding.subject, finding.kind) for finding in findings]


def everywhere(hosts: int, device: int, change: Mapping[str, Any]) -> Changes:
    return {(host, device): change for host in range(hosts)}


BAD: dict[str, tuple[int, Changes, list[tuple[str, str, str]]]] = {
    "one of a node is down": (1, {(0, 3): DOWN}, [("n0", "mlx5_3/1", "port_down")]),
    "one of a node of many": (5, {(2, 3): DOWN}, [("n2", "mlx5_3/1", "port_down")]),
    "no subnet manager": (
        2, {(1, 3): {"state": "2: INIT"}}, [("n1", "mlx5_3/1", "port_down")],
    ),
    "half of the lanes": (1, {(0, 7): HALF}, [("n0", "mlx5_7/1", "port_slow")]),
    "half of the rate on one node": (
        2, {(1, 0): {"rate": "200 Gb/sec (4X HDR)"}}, [("n1", "mlx5_0/1", "port_slow")],
    ),
    "half of the slot": (1, {(0, 1): {"current_link_width": 8}}, [("n0", "mlx5_1/1", "nic_slot")]),
    "a slot of an older generation": (
        1, {(0, 1): {"current_link_speed": "16.0 GT/s PCIe"}}, [("n0", "mlx5_1/1", "nic_slot")],
    ),
    "another partition": (3, {(1, 2): {"pkeys__0": "0x8001"}}, [("n1", "mlx5_2/1", "pkey")]),
    "a rail is off on all nodes": (
        3, everywhere(3, 4, DOWN), [(f"n{host}", "mlx5_4/1", "port_down") for host in range(3)],
    ),
    "a node is off the fabric": (
        1, {(0, device): DOWN for device in range(8)}, [("n0", f"mlx5_{device}/1", "port_down") for device in range(8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_port_that_is_worse_than_its_siblings_is_named(tmp_path: Path, what: str) -> None:
    count, changes, due = BAD[what]
    findings, _ = judge_ports(nodes(tmp_path, count, changes))
    assert told(findings) == due
    assert all(finding.severity.fails and finding.action for finding in findings)


OTHER = {"board_id": "MT_0000000223", "link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)"}
WELL: dict[str, tuple[int, Changes, dict[str, Any], int]] = {
    "all alike": (4, {}, {}, 8),
    "XDR on an old kernel": (2, {}, {"rate": "10 Gb/sec (4X)"}, 8),
    "a front end of another card": (3, everywhere(3, 0, OTHER), {}, 8),
    "a front end on one node": (1, {(0, 0): {**OTHER, **DOWN}}, {}, 8),
    "second ports without cables": (3, {(host, device): DOWN for host in range(3) for device in (1, 3)}, {}, 4),
    "second ports without cables on one node": (1, {(0, 1): DOWN, (0, 3): DOWN}, {}, 4),
    "storage in a partition of its own": (3, everywhere(3, 0, {"pkeys__0": "0x8005"}), {"board_id": "S"}, 2),
    "EFA before its driver knew rates": (2, {}, EFA, 32),
    "a laptop with an unused card": (1, {}, {**DOWN, "link_layer": "Ethernet"}, 2),
    "a machine that hides its slots": (2, {}, {"current_link_speed": "Unknown", "current_link_width": 0}, 4),
}


@pytest.mark.parametrize("what", WELL)
def test_healthy_machines_are_not_accused(tmp_path: Path, what: str) -> None:
    count, changes, common, devices = WELL[what]
    assert judge_ports(nodes(tmp_path, count, changes, devices, **common))[0] == []


def test_names_that_differ_between_nodes_are_no_missing_cards(tmp_path: Path) -> None:
    """Some systems name devices by their PCI addresses, which may differ."""
    facts = {}
    for host in ("a", "b", "c"):
        for device in range(3 if host == "c" else 4):
            write_port(tmp_path / host, f"{host}{device}")
        facts[host] = read_rdma(tmp_path / host)
    (found,) = judge_ports(facts)[0]
    assert (found.host, found.kind, found.message) == ("c", "nic_missing", "3 RDMA ports, 4 on most nodes")


def test_a_card_without_a_driver_is_a_fault_unless_it_is_given_away(tmp_path: Path) -> None:
    facts = nodes(tmp_path, 1, {}, 1)
    for bus, driver in (("0000:a1:00.0", None), ("0000:a2:00.0", "vfio-pci"), ("0000:a3:00.0", "mlx5_core")):
        card = tmp_path / "n0/bus/pci/devices" / bus
        card.mkdir()
        (card / "class").write_text("0x020700\n", encoding="ascii")
        if driver is not None:
            (tmp_path / "n0/bus/pci/drivers" / driver).mkdir(parents=True)
            (card / "driver").symlink_to(tmp_path / "n0/bus/pci/drivers" / driver)
    facts["n0"] = read_rdma(tmp_path / "n0")
    assert told(judge_ports(facts)[0]) == [
        ("n0", "0000:a1:00.0", "no_rdma_driver"), ("n0", "0000:a3:00.0", "no_rdma_driver"),
    ]  # fmt: skip


GAINS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "nothing": ({}, {}, []),
    "since the boot": ({"counters__link_downed": 3, "counters__symbol_error": 500}, {}, []),
    "a flap": ({"counters__link_downed": 3}, {"counters__link_downed": 4}, ["link_flapped"]),
    "a flap, and the counters were cleared": (
        {"counters__link_downed": 3}, {"counters__link_downed": 1}, ["link_flapped"],
    ),
    "few errors": ({}, {"counters__symbol_error": 10}, []),
    "errors": ({}, {"counters__symbol_error": 11}, ["port_errors"]),
    "congestion": ({}, {"counters__port_xmit_discards": 5}, []),
    "packets that EFA lost": (
        {"hw_counters__retrans_timeout_events": 7}, {"hw_counters__retrans_timeout_events": 1007}, ["port_congested"],
    ),
    "a full counter": ({"counters__link_downed": 255}, {}, ["counter_saturated"]),
    "it went down": ({}, DOWN, ["port_down"]),
    "it lost lanes": ({}, HALF, ["port_slow"]),
    "others carry the data": ({"counters__port_xmit_data": 5}, {"counters__port_xmit_data": 6}, ["nic_unused"]),
}  # fmt: skip


@pytest.mark.parametrize("what", GAINS)
def test_what_ports_gained_under_load(tmp_path: Path, what: str) -> None:
    """All ports but the changed one send 40 GB."""
    first, later, due = GAINS[what]
    load = {"counters__port_xmit_data": 10**10}
    before = sysfs_node(tmp_path / "1", 3, {1: first})
    after = sysfs_node(tmp_path / "2", 3, {1: {**load, **first, **later}}, **load)
    assert told(list(judge_gains("n", before, after))) == [("n", "mlx5_1/1", kind) for kind in due]


def test_a_card_that_is_gone_after_the_load(tmp_path: Path) -> None:
    before, after = sysfs_node(tmp_path / "1", 3, {}), sysfs_node(tmp_path / "2", 2, {})
    assert told(list(judge_gains("n", before, after))) == [("n", "mlx5_2/1", "nic_missing")]


def check(name: str, fleet: ProcessFleet, sysfs: str = "$SYSFS_OF_TEST", **options: Any) -> Report:
    return get_check(name).run(fleet, CheckSettings(options={"sysfs": sysfs, **options}))


def fleet(folder: Path, hosts: Sequence[str]) -> ProcessFleet:
    env = {host: {"SYSFS_OF_TEST": str(folder / host)} for host in hosts}
    return ProcessFleet(site=cpu_site(len(hosts)), hosts=tuple(hosts), folder=folder / "checks", env=env)


def test_ports_of_real_ranks_before_and_after(tmp_path: Path) -> None:
    """The second check compares with the reading of the first one; without any data in between it proves nothing."""
    nodes(tmp_path, 2, {(1, 0): DOWN}, 4)
    both = fleet(tmp_path, ["n0", "n1"])
    assert told(check("rdma_ports", both).findings) == [("n1", "mlx5_0/1", "port_down")]
    assert check("rdma_ports", both, devices=["mlx5_1", "mlx5_2"]).findings == ()
    skipped = check("rdma_errors", both).skipped
    assert skipped.keys() == {"n0", "n1"}
    assert skipped["n0"].startswith("its ports sent 0 GB since the first reading: run it with rdma_ports")
    nodes(tmp_path, 2, {(0, 2): {"counters__link_downed": 1}}, 4, counters__port_xmit_data=10**10)
    report = check("rdma_errors", both)
    assert told(report.findings) == [("n0", "mlx5_2/1", "link_flapped")]
    assert report.evidence["sent_bytes"] == {"n0": 16 * 10**10, "n1": 16 * 10**10}
    assert not report.skipped


def test_ports_that_carried_nothing_prove_nothing_beside_a_node_with_an_error(tmp_path: Path) -> None:
    nodes(tmp_path, 2, {}, 4)
    both = fleet(tmp_path, ["n0", "n1"])
    check("rdma_ports", both)
    nodes(tmp_path, 2, {(0, 2): {"counters__link_downed": 1}}, 4)
    report = check("rdma_errors", both)
    assert told(report.findings) == [("n0", "mlx5_2/1", "link_flapped")]
    assert report.skipped.keys() == {"n0", "n1"}


@pytest.mark.parametrize("name", ["rdma_ports", "rdma_errors"])
def test_machines_without_rdma_skip(tmp_path: Path, name: str) -> None:
    """Such as a laptop, or a cloud with virtual NICs."""
    write_sysfs(tmp_path / "n0", {"0000:01:00.0": ("nvme", 0)})
    assert check(name, fleet(tmp_path, ["n0"])).skip == "no RDMA device, and no card for one on PCI"


# As infiniband-diags 39 prints it, and an old card, whose errors are only in the short form.
_LONG = """# Port extended counters: Lid 1719 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................36298026860928
PortRcvData:.....................12279028775751
LinkDownedCounter:...............3
"""
_SHORT = """# Port counters: Lid 1719 port 1 (CapMask: 0x5300)
PortSelect:......................1
CounterSelect:...................0x0000
SymbolErrorCounter:..............7
LinkErrorRecoveryCounter:........0
LinkDownedCounter:...............3
VL15Dropped:.....................0
PortXmitData:....................4294967295
"""
_ETHTOOL = """NIC statistics:
     rx_packets: 4059
     rx_discards_phy: 12
     rx_prio3_pause: 88
     link_down_events_phy: 2
"""


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_counters_that_the_kernel_lacks_are_those_of_perfquery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one refuses a user who may not open the device, and the port has no counters then."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    gone = dict.fromkeys(("counters__link_downed", "counters__symbol_error", "counters__port_xmit_data"))
    refuses = "ibwarn: [7] mad_rpc_open_port: can't open UMAD port (mlx5_0:1)"
    program(tmp_path / "bin", "perfquery", f'echo "{refuses}" >&2; exit 1')
    assert sysfs_node(tmp_path / "n", 1, {}, **gone).ports[0].counters == {}
    shapes = {"-C mlx5_0 -P 1": _SHORT, "-x -C mlx5_0 -P 1": _LONG}
    cases = "\n".join(f"'{options}') printf '{text}';;" for options, text in shapes.items())
    program(tmp_path / "bin", "perfquery", f'case "$*" in\n{cases}\n*) exit 1;;\nesac')
    (port,) = read_rdma(tmp_path / "n").ports
    assert port.sent_bytes == 4 * 36298026860928
    assert {name: port.counters[name] for name in ("symbol_error", "link_downed", "VL15_dropped")} == {
        "symbol_error": 7, "link_downed": 3, "VL15_dropped": 0,
    }  # fmt: skip


def test_a_port_of_ethernet_has_the_counters_of_ethtool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    program(tmp_path / "bin", "ethtool", f"[ \"$*\" = '-S eth7' ] || exit 1\nprintf '{_ETHTOOL}'")
    sysfs_node(tmp_path / "n", 1, {}, link_layer="Ethernet")
    (tmp_path / "n/class/infiniband/mlx5_0/device/net/eth7").mkdir(parents=True)
    before = read_rdma(tmp_path / "n")
    program(tmp_path / "bin", "ethtool", f"printf '{_ETHTOOL.replace(': 12', ': 512').replace('phy: 2', 'phy: 3')}'")
    found = list(judge_gains("n", before, read_rdma(tmp_path / "n")))
    assert [(one.kind, one.message) for one in found] == [
        ("link_flapped", "link_down_events_phy +1"), ("port_congested", "rx_discards_phy +500")
    ]  # fmt: skip
    (tmp_path / "bin/ethtool").unlink()
    assert "rx_discards_phy" not in read_rdma(tmp_path / "n").ports[0].counters


def test_counters_of_an_efa_device_and_its_port(tmp_path: Path) -> None:
    usual = {**EFA, "hw_counters__tx_bytes": 10**12, "hw_counters__rdma_write_wr_err": 0}
    before = sysfs_node(tmp_path / "1", 1, {}, **usual)
    after = sysfs_node(tmp_path / "2", 1, {}, **{**usual, "hw_counters__rdma_write_wr_err": 200})
    assert before.ports[0].sent_bytes == 10**12
    assert [one.message for one in judge_gains("n", before, after)] == ["rdma_write_wr_err +200"]


def test_the_first_check_that_asks_for_the_hardware_reads_the_counters_before_the_load(tmp_path: Path) -> None:
    """So the errors span the load of collectives and pairs, whether or not `rdma_ports` was selected."""
    nodes(tmp_path, 2, {}, 2)
    both = fleet(tmp_path, ["n0", "n1"])
    ask_machines(both, "$SYSFS_OF_TEST")
    nodes(tmp_path, 2, {(0, 1): {"counters__link_downed": 1}}, 2, counters__port_xmit_data=10**10)
    assert told(check("rdma_errors", both).findings) == [("n0", "mlx5_1/1", "link_flapped")]


HOSTS = ("n0", "n1", "n2", "n3")


def measure(
    folder: Path, rates: Mapping[str, float | None], machine: Any = None, *, bound: str | None = None, **env: str
) -> Report:
    """The report on nodes with two ports of 400 Gb/s, all of them healthy but for `rates`."""
    known = {f"{host} mlx5_{number}": 392.4 for host in HOSTS for number in range(2)}
    known = {end: rate for end, rate in {**known, **rates}.items() if rate is not None}
    (folder / "meet").mkdir()
    own = {
        "PATH": f"{perftest.install(folder / 'bin')}{os.pathsep}{os.environ['PATH']}",
        "STANDIN_PERFTEST": str(folder / "meet"), "STANDIN_RATES": json.dumps(known), **env,
    }  # fmt: skip
    site = Site(system="test", nodes=len(HOSTS), gpus_per_node=2)
    fleet = ProcessFleet(site, HOSTS, folder, env=dict.fromkeys(HOSTS, own))
    facts = machine or node("H100", 2, nics=2, write_bw=True)
    machines = Machines(site=site, facts=dict.fromkeys(HOSTS, facts), missing={})
    bounds = (
        (reference("port_write_bw", bound, nodes=2), reference("rail_busbw", "40 GB/s", name="rail")) if bound else ()
    )
    return add_ports(get_check("rail"), Report(), fleet, CheckSettings(references=bounds), machines, HOSTS)


def test_a_slow_port_is_named_and_its_partners_are_not(tmp_path: Path) -> None:
    report = measure(tmp_path, {"n2 mlx5_1": 197.1})
    assert [(one.host, one.subject, one.kind) for one in report.findings] == [("n2", "mlx5_1", "below_physics")]
    assert report.findings[0].message.startswith("port_write_bw 197.1 Gb/s misses >= 328.1 Gb/s: physics expects 386")
    assert {(one.host, one.subject): one.value for one in report.readings}["n1", "mlx5_0"] == 392.4
    assert len(report.readings) == 8
    assert (report.bounds, report.notes) == (
        ("port_write_bw: physics expects 386 Gb/s, FAIL below 328.1: 0.965 of 400 Gb/s",), ()
    )  # fmt: skip


def test_what_perftest_refuses_is_a_note(tmp_path: Path) -> None:
    """A port that it does not find, or too little memory that may be locked, accuse nobody."""
    report = measure(tmp_path, {}, STANDIN_REFUSES="Couldn't allocate MR")
    assert (report.findings, report.readings, report.unjudged) == ((), (), {})
    assert "ib_write_bw: n1 mlx5_0: it ended with status 1: Couldn't allocate MR" in report.notes
    assert len(report.notes) == 8


def test_a_reference_bounds_the_rate_of_a_port(tmp_path: Path) -> None:
    """It replaces the bound by physics."""
    report = measure(tmp_path, {"n2 mlx5_1": 370.0}, bound="380 Gb/s")
    assert [(one.host, one.subject, one.kind) for one in report.findings] == [("n2", "mlx5_1", "below_reference")]
    assert not report.unjudged


def test_a_node_without_the_rate_that_a_reference_asks_for_is_unjudged(tmp_path: Path) -> None:
    report = measure(tmp_path, {}, node("H100", 2, nics=2), bound="380 Gb/s")
    assert report.unjudged == dict.fromkeys(HOSTS, "reference bound asks for port_write_bw, which was not measured")


@pytest.mark.parametrize("machine", [
    node("H100", 2, nics=2),  # it is not installed
    node("H100", 2, write_bw=True),
    node("H100", 1, ports=(port(0, 200, link_layer="Unspecified"),), write_bw=True),  # EFA
])  # fmt: skip
def test_nothing_runs_without_perftest_or_a_port_for_it(tmp_path: Path, machine: Any) -> None:
    assert measure(tmp_path, {}, machine) == Report()


@pytest.mark.parametrize(("row", "rate"), [
    (" 1048576    139872           0.00               392.41 \t\t   0.046779\n", "392.41"),
    (" 65536      20000            111.72             111.71             0.213070\n", "111.71"),
    (" 65536      5000             368.67             368.48 \t\t   0.702829\t\t  0.00\n", "368.48"),  # BW min
    (" local address: LID 0000 QPN 0x0108 PSN 0x63ad7d\n", None),
    (" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n", None),
])  # fmt: skip
def test_rows_of_its_versions(row: str, rate: str | None) -> None:
    assert (_ROW.findall(row) or [None])[0] == rate
