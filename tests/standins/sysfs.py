"""A stand-in for the part of sysfs that tells of GPUs and NICs."""

from collections.abc import Mapping
from pathlib import Path

_CLASSES = {"nvidia": "0x030200", "mlx5_core": "0x020700", "nvme": "0x010802"}
# A virtual machine of 8 GPUs and 8 NICs at 4 NUMA nodes.
NDV4: dict[str, tuple[str, int]] = {
    **{f"{number + 1:04x}:00:00.0": ("nvidia", number // 2) for number in range(8)},
    **{f"{number + 0x101:04x}:00:00.0": ("mlx5_core", number // 2) for number in range(8)},
}


def write_sysfs(root: Path, devices: Mapping[str, tuple[str, int]], classes: Mapping[str, str] | None = None) -> None:
    """Write driver and NUMA node by PCI address; `classes` by address, where it is not that of the driver's usual."""
    for bus, (driver, numa) in devices.items():
        device = root / "bus/pci/drivers" / driver / bus
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{numa}\n", encoding="ascii")
        (device / "class").write_text((classes or {}).get(bus, _CLASSES[driver]) + "\n", encoding="ascii")
        node = root / f"devices/system/node/node{max(0, numa)}"
        node.mkdir(parents=True, exist_ok=True)
        (node / "cpumap").write_text(f"0000,{0xF << (4 * max(0, numa)):08x}\n", encoding="ascii")
