"""Nodes of known hardware for tests, as plain facts."""

from typing import Any

from pytest_llmbench.core.wire.machine import MachineFacts, MachineGpu, MachinePort

_HOPPER = {
    "capability": "9.0", "sms": 132, "max_sm_mhz": 1980, "max_memory_mhz": 2619, "bus_bits": 5120, "own_pcie_gen": 5,
    "pcie_gen": 5, "pcie_width": 16, "nvlink_version": 4, "nvlinks": 18, "nvswitch": True, "multicast": True,
    "power_limit_w": 700, "default_power_limit_w": 700,
}  # fmt: skip
GPUS: dict[str, dict[str, Any]] = {
    "A100": {
        "name": "NVIDIA A100-SXM4-80GB", "capability": "8.0", "sms": 108, "max_sm_mhz": 1410, "max_memory_mhz": 1593,
        "bus_bits": 5120, "own_pcie_gen": 4, "pcie_gen": 4, "pcie_width": 16, "nvlink_version": 3, "nvlinks": 12,
        "nvswitch": True, "multicast": False, "default_power_limit_w": 400,
    },
    "H100": {"name": "NVIDIA H100 80GB HBM3", **_HOPPER},
    "H200": {"name": "NVIDIA H200", **_HOPPER, "max_memory_mhz": 3201, "bus_bits": 6144},
    "B200": {
        "name": "NVIDIA B200", **_HOPPER, "capability": "10.0", "sms": 148, "max_sm_mhz": 1965, "nvlink_version": 5,
        "max_memory_mhz": 3996, "bus_bits": 7680, "default_power_limit_w": 1000,
    },
    "GB200": {
        "name": "NVIDIA GB200", **_HOPPER, "capability": "10.0", "sms": 152, "max_sm_mhz": 2062, "nvlink_version": 5,
        "max_memory_mhz": 3996, "bus_bits": 7680, "c2c": True, "default_power_limit_w": 1200,
    },
}  # fmt: skip


GPUS["B300"] = {**GPUS["B200"], "name": "NVIDIA B300 SXM6 AC", "capability": "10.3", "default_power_limit_w": 1100}
GPUS["GB300"] = {**GPUS["GB200"], "name": "NVIDIA GB300", "capability": "10.3", "default_power_limit_w": 1400}


def root_of(number: int) -> str:
    """The root port of a GPU."""
    return f"0000:{number:02x}:01.0"


def port(number: int, rate: float = 400, **changes: Any) -> MachinePort:
    """A port of an InfiniBand card of its own, near the GPU with its number."""
    facts = {
        "device": f"mlx5_{number}", "port": 1, "bus": f"0000:{number:02x}:03.0", "root_port": root_of(number),
        "model": "0x15b3:0x1021", "board": f"b{number}", "rate_gbits": rate, "state": "ACTIVE", "phys_state": "LinkUp",
        "link_layer": "InfiniBand", "pcie_gen": 5, "pcie_width": 16,
    }  # fmt: skip
    return MachinePort(**{**facts, **changes})


def node(
    gpu: str = "H100", gpus: int = 8, nics: int = 0, rate: float = 400, each: dict[str, Any] | None = None,
    **changes: Any,
) -> MachineFacts:  # fmt: skip
    """A node whose GPUs are all alike, with so many NICs.

    `each` are other facts of every GPU, `changes` those of the node.
    """
    facts_of_gpu = {**GPUS[gpu], **(each or {})}
    own = tuple(MachineGpu(bus=f"0000:{number:02x}:02.0", **facts_of_gpu) for number in range(gpus))
    facts = {
        "gpus": own, "root_ports": {one.bus: root_of(number) for number, one in enumerate(own)},
        "joined": True if gpus > 1 else None, "ports": tuple(port(number, rate) for number in range(nics)),
    }  # fmt: skip
    return MachineFacts(**{**facts, **changes})
