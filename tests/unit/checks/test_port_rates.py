"""The rate of each NIC by perftest, between real ranks that run a stand-in for it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.checks.network.nodes.write_bw import _ROW
from pytest_llmbench.checks.network.ports import add_ports
from pytest_llmbench.core.record.health import Report
from tests.standins import perftest
from tests.support.fleet import ProcessFleet
from tests.support.hardware import node, port
from tests.support.references import reference

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


@pytest.mark.parametrize(
    "machine",
    [
        node("H100", 2, nics=2),  # it is not installed
        node("H100", 2, write_bw=True),
        node("H100", 1, ports=(port(0, 200, link_layer="Unspecified"),), write_bw=True),  # EFA
    ],
)
def test_nothing_runs_without_perftest_or_a_port_for_it(tmp_path: Path, machine: Any) -> None:
    assert measure(tmp_path, {}, machine) == Report()


@pytest.mark.parametrize(
    ("row", "rate"),
    [
        (" 1048576    139872           0.00               392.41 \t\t   0.046779\n", "392.41"),
        (" 65536      20000            111.72             111.71             0.213070\n", "111.71"),
        (" 65536      5000             368.67             368.48 \t\t   0.702829\t\t  0.00\n", "368.48"),  # BW min
        (" local address: LID 0000 QPN 0x0108 PSN 0x63ad7d\n", None),
        (" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n", None),
    ],
)
def test_rows_of_its_versions(row: str, rate: str | None) -> None:
    assert (_ROW.findall(row) or [None])[0] == rate
