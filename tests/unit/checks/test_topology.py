"""The topology check on processes that pose as nodes, each with a sysfs of its own."""

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.checks.topology.check import read_topology, render, select_devices
from pytest_llmbench.checks.topology.nodes.pci_topology import PciDevice, PciFacts
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.health import Report
from tests.standins.sysfs import NDV4, write_sysfs
from tests.support.fleet import ProcessFleet, cpu_site

CHECK = get_check("nccl_topology")
SITE = Site(system="ndv4", nodes=3, gpus_per_node=8)
SYSFS = {"sysfs": "$SYSFS_OF_TEST"}
_GPUS = {f"{number:04x}:00:00.0": number // 2 for number in range(4)}


def told(devices: Mapping[str, int]) -> PciFacts:
    gpus = (PciDevice(bus=bus, driver="nvidia", pci_class="0x030200", numa=numa) for bus, numa in devices.items())
    return PciFacts(devices=tuple(gpus), cpu={"arch": "x86_64"}, affinity={"0": "ff"}, installed=None)


def written(devices: Mapping[str, int]) -> str:
    return render(told(devices), link_speed="16 GT/s", link_width=16)


def check(
    folder: Path,
    nodes: Mapping[str, Mapping[str, tuple[str, int]]],
    *,
    site: Site = SITE,
    files: Mapping[str, str] | None = None,
) -> Report:
    """Run the check; `files` are installed topology files by host, empty for one that is missing."""
    env: dict[str, dict[str, str]] = {}
    for host, devices in nodes.items():
        write_sysfs(folder / host, devices)
        env[host] = {"SYSFS_OF_TEST": str(folder / host)}
        if files and host in files:
            installed = folder / host / "ndv4-topo.xml"
            env[host]["NCCL_TOPO_FILE"] = str(installed)
            if files[host]:
                installed.write_text(files[host], encoding="utf-8")
    (folder / "check").mkdir(parents=True, exist_ok=True)
    fleet = ProcessFleet(site=site, hosts=tuple(nodes), folder=folder / "check", env=env)
    return CHECK.run(fleet, CheckSettings(options=SYSFS))


def test_the_file_is_that_of_the_machine(tmp_path: Path) -> None:
    """Four NUMA nodes, each with a switch, two GPUs and two NICs; it is left for whoever installs it."""
    report = check(tmp_path, {"a": NDV4, "b": NDV4})
    assert (report.findings, report.unjudged, report.skip) == ((), {}, None)
    path = tmp_path / "check/nccl-topo.xml"
    assert str(path) in " ".join(report.notes)
    system = ET.fromstring(path.read_text(encoding="utf-8"))
    assert (system.tag, system.attrib) == ("system", {"version": "1"})
    switches = [(cpu.get("numaid"), [pci.get("busid") for pci in cpu]) for cpu in system]
    assert switches == [(str(numa), [f"ffff:ff:{numa + 1:02x}.0"]) for numa in range(4)]
    assert [pci.attrib for pci in system[1][0]] == [
        {"busid": bus, "class": kind, "link_speed": "16 GT/s", "link_width": "16"}
        for bus, kind in (
            ("0003:00:00.0", "0x030200"), ("0004:00:00.0", "0x030200"),
            ("0103:00:00.0", "0x020700"), ("0104:00:00.0", "0x020700"),
        )
    ]  # fmt: skip


def test_an_installed_file_is_held_against_the_node(tmp_path: Path) -> None:
    """One that fits in another order, one that is missing, one of another machine, one that is cut off."""
    check(tmp_path / "first", {"a": NDV4})
    good = (tmp_path / "first/check/nccl-topo.xml").read_text(encoding="utf-8")
    system = ET.fromstring(good)
    system[:] = reversed(system[:])
    reordered = ET.tostring(system, encoding="unicode")
    wrong = good.replace("0003:00:00.0", "0009:00:00.0").replace('class="0x020700"', 'class="0x020000"', 1)
    files = {"same": reordered, "gone": "", "wrong": wrong, "cut": good[: len(good) // 2]}
    report = check(tmp_path, dict.fromkeys(files, NDV4), files=files)
    found = {finding.host: finding for finding in report.findings}
    assert set(found) == {"gone", "wrong", "cut"}
    assert {finding.severity for finding in report.findings} == {"CONFIGURE"}
    assert "No such file" in found["gone"].message
    for words in ("0003:00:00.0 is missing", "0009:00:00.0 is extra", "0101:00:00.0 has class 0x020000, not 0x020700"):
        assert words in found["wrong"].message
    assert "not a topology file" in found["cut"].message
    generated = tmp_path / "check/ndv4-topo.xml"
    assert f"copy {generated} to" in found["gone"].action
    assert generated.read_text(encoding="utf-8") == good


def test_nodes_are_held_against_each_other(tmp_path: Path) -> None:
    """A NIC that is gone, and a GPU at another NUMA node; each has a file of its own. Of two, both are named."""
    gone = {bus: each for bus, each in NDV4.items() if bus != "0105:00:00.0"}
    moved = {**NDV4, "0001:00:00.0": ("nvidia", 1)}
    report = check(tmp_path, {"a": NDV4, "b": NDV4, "c": NDV4, "gone": gone, "moved": moved})
    found = {finding.host: finding for finding in report.findings}
    assert {host: str(finding.severity) for host, finding in found.items()} == {"gone": "ISOLATE", "moved": "CONFIGURE"}
    assert found["gone"].message == "differs from a: 0105:00:00.0 is missing"
    assert "0001:00:00.0 is at NUMA node 1, not 0" in found["moved"].message
    assert (tmp_path / "check/moved-nccl-topo.xml").exists()
    report = check(tmp_path / "two", {"a": NDV4, "b": {**NDV4, "0001:00:00.0": ("nvidia", 1)}})
    assert {finding.host for finding in report.findings} == {"a", "b"}
    assert all("unknown" in finding.message for finding in report.findings)


def test_promised_gpus_that_are_not_there_are_no_reason_to_skip(tmp_path: Path) -> None:
    assert list(check(tmp_path / "promised", {"a": NDV4, "b": {}}).unjudged) == ["b"]
    assert check(tmp_path / "laptop", {"a": {}}, site=cpu_site(1)).skip


def test_ethernet_does_not_count_beside_infiniband() -> None:
    gpu = PciDevice(bus="a", driver="nvidia", pci_class="0x030200", numa=0)
    infiniband = PciDevice(bus="b", driver="mlx5_core", pci_class="0x020700", numa=0)
    ethernet = PciDevice(bus="c", driver="mlx5_core", pci_class="0x020000", numa=0)
    assert select_devices([gpu, infiniband, ethernet]) == [gpu, infiniband]
    assert select_devices([gpu, ethernet]) == [gpu, ethernet]


def test_a_file_may_know_more_switches_than_the_node_shows() -> None:
    truth = read_topology(written(_GPUS))
    finer = written({bus: number for number, bus in enumerate(_GPUS)})
    for number, numa in enumerate(_GPUS.values()):
        finer = finer.replace(f'numaid="{number}"', f'numaid="{numa}"')
    assert not list(read_topology(finer).differences(truth))
    coarse = read_topology(written(dict.fromkeys(_GPUS, 0)))
    assert any("behind one switch with" in words for words in coarse.differences(truth))


@pytest.mark.parametrize("numa", [None, -1])
def test_a_device_without_a_place_is_not_placed(numa: int | None) -> None:
    with pytest.raises(RunError, match="sysfs does not say"):
        written({**_GPUS, "0003:00:00.0": numa})  # type: ignore[dict-item]


@given(st.dictionaries(st.sampled_from(sorted(_GPUS)), st.integers(0, 3), min_size=1))
def test_what_is_written_is_read_back(devices: dict[str, int]) -> None:
    found = read_topology(written(devices))
    assert found.numa == {bus: str(numa) for bus, numa in devices.items()}
    assert not list(found.differences(found))


@given(st.integers(0, len(written(_GPUS)) - 2))
def test_a_file_that_was_cut_off_is_refused(end: int) -> None:
    with pytest.raises(RunError):
        read_topology(written(_GPUS)[:end])
