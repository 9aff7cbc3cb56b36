"""Faults that slow all GPUs alike: each has its tier, and the operator reads its reason.

NVIDIA's nccl-tests and nvidia-smi are programs that print as the real ones do, at the rates that the faults have in
public records and in our own on H200. Copies and products answer as ranks of such a node would.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import Answer, CheckSettings, Probe, Site, get_check
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.wire.machine import MachineFabric, MachineFacts
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from tests.standins import nccl_tests
from tests.standins.nvidia_smi import gpu_node, smi_xml
from tests.support.hardware import node
from tests.support.nccl import lines

H100 = node("H100", nics=8)
H200 = node("H200", 4, each={"multicast": False})
TRAY = node("GB200", 4, each={"fabric": MachineFabric(state=3, status=0, cluster_uuid=f"{7:032x}", clique_id=1)})
ONE, TWO = ("n0",), ("n0", "n1")
SHM = {"inside": "SHM/direct/direct"}
ON = {"nvls": "yes", "nvls_channels": 16, "algorithm": "NVLS"}
PAIR: dict[str, Any] = {"hosts": TWO, "gpus": 8, **ON, "algorithm": "RING"}
# The hosts and their hardware; variables of the job; NCCL's lines; the rate of all_reduce, GB/s; kinds of findings with
# the tier of each, and words that the operator reads.
WIRE: dict[str, tuple[Sequence[str], MachineFacts, dict[str, str], dict[str, Any], float, dict[str, str], str]] = {
    "healthy": (ONE, H200, {}, {}, 365.0, {}, ""),
    "a healthy pair": (TWO, H100, {}, PAIR, 460.0, {}, ""),
    "TCP instead of InfiniBand": (
        TWO, H100, {"NCCL_IB_DISABLE": "1"}, {**PAIR, "between": "NET/Socket/0", "nics_of": 0}, 3.0,
        {"below_physics": "fails", "over_tcp": "fails"},
        "cause: NCCL_IB_DISABLE=1 is set",
    ),
    "TCP in an image without a plugin": (
        TWO, H100, {}, {**PAIR, "between": "NET/Socket/0", "nics_of": 0}, 3.0,
        {"below_physics": "fails", "over_tcp": "fails"}, "cause: data between nodes went over TCP (NET/Socket)",
    ),
    "P2P off": (
        ONE, H200, {"NCCL_P2P_DISABLE": "1"}, SHM, 29.3, {"below_physics": "fails", "no_p2p": "fails"},
        "cause: NCCL_P2P_DISABLE=1 is set",
    ),
    "P2P and SHM off": (
        ONE, H200, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        {"inside": "NET/Socket/0", "between": "NET/Socket/0"}, 3.0, {"below_physics": "fails", "no_p2p": "fails"},
        "cause: NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 are set",
    ),
    "one channel": (
        ONE, H200, {"NCCL_MAX_NCHANNELS": "1"}, {}, 25.0, {"below_physics": "fails", "slow_setting": "warns"},
        "cause: NCCL_MAX_NCHANNELS=1: few channels share the links",
    ),
    "protocol LL": (
        ONE, H200, {"NCCL_PROTO": "LL"}, {}, 135.0, {"below_physics": "fails", "slow_setting": "warns"},
        "cause: NCCL_PROTO=LL",
    ),
    "tiny buffers": (
        ONE, H200, {"NCCL_BUFFSIZE": "65536"}, {}, 112.0, {"below_physics": "fails", "slow_setting": "warns"},
        "cause: NCCL_BUFFSIZE=65536: buffers are small",
    ),
    "one core": (ONE, H200, {}, {}, 350.0, {"few_cores": "warns"}, "all 4 ranks of a node run on 1 core"),
    "one NIC of eight": (
        TWO, H100, {"NCCL_IB_HCA": "mlx5_0"}, {**PAIR, "nics_of": 1}, 47.0,
        {"below_physics": "fails", "lost_nics": "fails"}, "NCCL uses 1 of the 8 NICs of a node; NCCL_IB_HCA=mlx5_0",
    ),
    "one NIC lost of eight": (
        TWO, H100, {}, {**PAIR, "nics_of": 7}, 430.0, {"lost_nics": "fails"}, "NCCL uses 7 of the 8 NICs of a node",
    ),
    "no GDR": (
        TWO, H100, {}, {**PAIR, "between": "NET/IB/0"}, 155.0, {"below_physics": "fails", "no_gdr": "fails"},
        "cause: NICs did not read the memory of GPUs (no GDRDMA)",
    ),
    "ACS": (
        TWO, H100.model_copy(update={"acs": ("0000:00:01.0", "0000:20:01.0")}), {}, PAIR, 186.0,
        {"below_physics": "fails", "acs": "warns"}, "cause: PCI ACS of 2 bridges sends data between GPUs and NICs",
    ),
    "MNNVL off": (
        TWO, TRAY, {"NCCL_MNNVL_ENABLE": "0"}, {**ON, "hosts": TWO, "algorithm": "RING"}, 191.0,
        {"below_physics": "fails", "mnnvl_off": "fails"}, "cause: NCCL_MNNVL_ENABLE=0 is set",
    ),
    "NVLS off": (
        ONE, node("H100"), {"NCCL_NVLS_ENABLE": "0"}, {"gpus": 8, "nvls": ""}, 365.0,
        {"below_physics": "warns", "nvls_off": "fails"}, "cause: NCCL_NVLS_ENABLE=0 is set",
    ),
    "NVLS lost": (
        ONE, node("H100"), {}, {"gpus": 8, "nvls": "yes"}, 365.0, {"below_physics": "warns", "nvls_off": "fails"},
        "all_reduce goes without NVLink SHARP (NVLS): it is available, and no channel uses it",
    ),
}  # fmt: skip


@dataclass
class NodeOfPrograms:
    """A fleet of nodes with known hardware, on which steps run programs; other steps have a computed answer."""

    site: Site
    hosts: tuple[str, ...]
    machine: MachineFacts
    folder: Path
    computed: Mapping[str, Any] | None = None

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        return [self.once(probe) for probe in probes]

    def once(self, probe: Probe) -> list[Answer]:
        hosts = probe.hosts or self.hosts
        if probe.name == "machine":
            data: Any = self.machine.model_dump(mode="json")
        elif self.computed is not None and probe.ranks_per_node > 1:
            data = self.computed
        else:
            module, _, function = probe.entry.partition(":")
            context = RankContext(
                rank=0, world_size=1, local_rank=0, ranks_per_node=1, nodes=1, folder=self.folder, device="cuda",
                config=probe.config,
            )  # fmt: skip
            data = getattr(importlib.import_module(module), function)(context, ProbeLog(context)).model_dump()
        return [
            Answer(host=host, rank=number * probe.ranks_per_node + local, local_rank=local, data=data)
            for number, host in enumerate(hosts)
            for local in range(probe.ranks_per_node)
        ]


def tiers(report: Report) -> dict[str, str]:
    return {finding.kind: "fails" if finding.severity.fails else "warns" for finding in report.findings}


@pytest.mark.parametrize("fault", WIRE)
def test_a_fault_of_the_wire(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, machine, variables, printed, gb_s, expected, words = WIRE[fault]
    gpus = len(machine.gpus)
    text = lines(**{"hosts": hosts, "gpus": gpus, **printed})
    if printed.get("nvls") == "":
        text = [line for line in text if "multicast" not in line]
    (tmp_path / "lines").write_text("\n".join(text), encoding="utf-8")
    env = {**variables, "STANDIN_GB_S": str(gb_s), "STANDIN_LINES": str(tmp_path / "lines")}
    root = nccl_tests.install(tmp_path / "nccl-tests", "all_reduce")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0} if fault == "one core" else set(range(96)))
    site = Site(
        system="test", nodes=len(hosts), gpus_per_node=gpus, selected=("all_reduce",),
        environments={"nccl_tests": Environment(root=str(root), env=env)},
    )  # fmt: skip
    options = {
        "backend": "nccl_tests", "min_bytes": 2**32, "launcher": ("env", "STANDIN_RANKS={ranks}"),
    }  # fmt: skip
    fleet = NodeOfPrograms(site, tuple(hosts), machine, tmp_path)
    report = get_check("all_reduce").run(fleet, CheckSettings(options=options))
    assert report.problem is None
    assert not report.unjudged
    assert tiers(report) == expected
    assert words in "\n".join(map(str, report.findings))
    assert all(finding.action for finding in report.findings)


COPIES = ("host_to_device", "device_to_host", "host_to_device_all", "device_to_host_all")
PRODUCT = {"rate": 670e12, "digest": "1", "repeated": 9, "changed": 0, "error": 1e-5}
LIMITED = node("H200", 2, each={"power_limit_w": 400})
DEVICE: dict[str, tuple[str, MachineFacts, dict[str, Any], str, str]] = {
    "healthy": ("host_device_bandwidth", H200, {}, "", ""),
    "another socket at full rate": ("host_device_bandwidth", H200, {"path": {"far": True}}, "", ""),
    "wrong NUMA node": (
        "host_device_bandwidth", H200, {"rate": 38e9, "path": {"far": True}}, "CONFIGURE",
        "cause: the process runs on cores of another socket and NUMA node than that of its GPU",
    ),
    "pageable memory": (
        "host_device_bandwidth", H200, {"rate": 47e9, "pinned": False}, "MONITOR",
        "cause: the memory of the host is not pinned (pageable)",
    ),
    "PCIe at half width": (
        "host_device_bandwidth", H200, {"rate": 27.6e9, "path": {"pcie_gen": 5, "pcie_width": 8}}, "ISOLATE",
        "cause: its link runs at PCIe generation 5 with 8 lanes, and can at PCIe generation 5 with 16 lanes",
    ),
    "PCIe of an older generation": (
        "host_device_bandwidth", H200, {"rate": 27.6e9, "path": {"pcie_gen": 4, "pcie_width": 16}}, "ISOLATE",
        "cause: its link runs at PCIe generation 4 with 16 lanes, and can at PCIe generation 5 with 16 lanes",
    ),
    "slow for no visible reason": ("host_device_bandwidth", H200, {"rate": 27.6e9}, "ISOLATE", "its own socket"),
    "lowered power limit": (
        "gemm", LIMITED, {"product": 450e12}, "CONFIGURE",
        "cause: its power limit is 400 W, and 700 W by default [CONFIGURE below_physics] -> nvidia-smi -pl 700",
    ),
    "a low product at the usual limit": ("gemm", H200, {"product": 450e12}, "ISOLATE", "physics expects"),
}  # fmt: skip


@pytest.mark.parametrize("fault", DEVICE)
def test_a_fault_of_a_device(fault: str, tmp_path: Path) -> None:
    name, machine, changes, severity, words = DEVICE[fault]
    changes = dict(changes)
    copies = {**dict.fromkeys(COPIES, changes.pop("rate", 55.2e9)), "pinned": True, "path": {}}
    product = {**PRODUCT, "rate": changes.pop("product", 670e12)}
    computed = {
        "device": "NVIDIA H200", "setting": {}, "memory": None, "host_device": {**copies, **changes},
        "gemm": {"side": 8192, "factors": "f", "lacking": {}, "precisions": {"bf16": product}},
    }  # fmt: skip
    fleet = NodeOfPrograms(
        Site(system="test", nodes=1, gpus_per_node=2, selected=(name,)), ONE, machine, tmp_path, computed
    )
    report = get_check(name).run(fleet, CheckSettings())
    assert {str(finding.severity) for finding in report.findings} == ({severity} if severity else set())
    assert words in "\n".join(map(str, report.findings))


SMI: dict[str, tuple[str, dict[str, str], str, str]] = {
    "PCIe at half width": (
        "gpu_pcie", {"<current_link_width>16x<": "<current_link_width>8x<"}, "pcie_width",
        "PCIe link has 8 of 16 lanes",
    ),
    "PCIe of an older generation": (
        "gpu_pcie", {"<current_link_gen>5<": "<current_link_gen>4<"}, "pcie_gen",
        "PCIe link runs at generation 4 of 5 in P0",
    ),
    "lowered power limit": (
        "gpu_throttle", {"<current_power_limit>700.00 W<": "<current_power_limit>500.00 W<"}, "power_limit",
        "power limit 500 W is below its default of 700 W",
    ),
    "no fabric of a rack": (
        "gpu_nvlink", {"<status>Success<": "<status>Insufficient Resources<"}, "fabric",
        "it did not join the NVLink fabric: Insufficient Resources",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", SMI)
def test_a_fault_that_nvidia_smi_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes, kind, words = SMI[fault]
    xml = smi_xml(changes=dict.fromkeys((0, 1), changes))
    monkeypatch.setenv("PATH", gpu_node(tmp_path / "node", xml=xml)["PATH"])
    fleet = NodeOfPrograms(Site(system="test", nodes=1, gpus_per_node=2), ONE, H200, tmp_path)
    report = get_check(name).run(fleet, CheckSettings())
    assert tiers(report) == {kind: "fails"}
    assert words in "\n".join(map(str, report.findings))
