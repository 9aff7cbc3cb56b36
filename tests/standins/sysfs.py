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


def write_port(root: Path, device: str, number: int = 1, **changes: object) -> None:
    """Write one RDMA port, by default an NDR port of a ConnectX-7; a file of `changes` is left out if it is None.

    `counters/link_downed` and the like are written with `__` for the slash.
    """
    card = root / "devices/pci" / f"0000:{int(''.join(filter(str.isdigit, device)) or 0):02x}:00.0"
    folder, port = root / "class/infiniband" / device, f"ports/{number}"
    usual: dict[str, object] = {
        "board_id": "MT_0000000838", f"{port}/state": "4: ACTIVE", f"{port}/phys_state": "5: LinkUp",
        f"{port}/rate": "400 Gb/sec (4X NDR)", f"{port}/link_layer": "InfiniBand", f"{port}/pkeys/0": "0xffff",
        f"{port}/pkeys/1": "0x0000", f"{port}/counters/link_downed": 0, f"{port}/counters/symbol_error": 0,
        f"{port}/counters/port_xmit_data": 0, f"{port}/hw_counters/lifespan": 12,
    }  # fmt: skip
    for name, text in {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700",
                       "current_link_speed": "32.0 GT/s PCIe", "current_link_width": 16}.items():  # fmt: skip
        card.mkdir(parents=True, exist_ok=True)
        (card / name).write_text(f"{changes.pop(name, text)}\n", encoding="ascii")
    own = {name.replace("__", "/"): text for name, text in changes.items()}
    own = {name if name == "board_id" else f"{port}/{name}": text for name, text in own.items()}
    for name, text in {**usual, **own}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n", encoding="ascii")
    bus = root / "bus/pci/devices" / card.name
    for link, target in ((folder / "device", card), (bus, card), (card / "infiniband" / device, folder)):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
