"""RDMA ports of a node as sysfs has them: InfiniBand, RoCE and EFA, and cards without a driver.

`perfquery` has the counters of an InfiniBand port that the kernel lacks, `ethtool` further ones of an Ethernet port.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.core.files import read_text
from pytest_llmbench.core.wire.machine import MachinePort
from pytest_llmbench.workloads.node.processes import output_of

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)
_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_INFINIBAND = "0x0207"  # PCI class
_EFA = re.compile(r"0x1d0f:0xefa[0-9a-f]", re.ASCII)
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}  # of PCIe by GT/s
_TOOL_S = 10.0
# `PortXmitData:....................36298026860928`, and `     rx_discards_phy: 0`
_COUNTER = re.compile(r"^\s*(\w{1,64}):[. ]*(\d{1,20})$", re.ASCII | re.MULTILINE)


def root_port(card: Path) -> str | None:
    """PCI address of the root port that a device of sysfs is below; None directly at the processor."""
    above = [part for part in card.resolve().parts[:-1] if ADDRESS.fullmatch(part)]
    return above[0] if above else None


def read_ports(root: Path) -> Iterator[MachinePort]:
    """Yield all ports of RDMA devices; `root` is where sysfs is mounted, or a captured tree of its files."""
    for device in sorted((root / "class/infiniband").glob("*")):
        card = (device / "device").resolve()
        board = read_text(device / "board_id") or read_text(device / "hca_type") or read_text(card / "device")
        speed, width = (read_text(card / f"current_link_{what}") for what in ("speed", "width"))
        known = speed is not None and width is not None and "nknown" not in speed and width not in {"0", "63", "255"}
        most, lanes = (_number(card / f"max_link_{what}") for what in ("speed", "width"))
        for folder in sorted((device / "ports").glob("*"), key=lambda path: (len(path.name), path.name)):
            rate = _RATE.match(read_text(folder / "rate") or "")
            pkeys = {key for path in (folder / "pkeys").glob("*") if (key := read_text(path)) not in {None, "0x0000"}}
            yield MachinePort(
                device=device.name, port=int(folder.name), bus=card.name if ADDRESS.fullmatch(card.name) else None,
                root_port=root_port(card), model=f"{read_text(card / 'vendor')}:{read_text(card / 'device')}",
                card=board, board=read_text(device / "sys_image_guid") or "", virtual=(card / "physfn").exists(),
                rate_gbits=float(rate[1]) if rate else None, lanes=int(rate[2]) if rate and rate[2] else None,
                state=_word(folder / "state"), phys_state=_word(folder / "phys_state"),
                link_layer=read_text(folder / "link_layer") or "",
                pcie_gen=None if most is None else _GENERATIONS.get(f"{most:g}"),
                pcie_width=None if lanes is None else int(lanes),
                slot=f"{(speed or '').removesuffix(' PCIe')} x{width}" if known else None,
                pkeys=tuple(sorted(key for key in pkeys if key)), counters=_read_counters(device, folder, card),
            )  # fmt: skip


def find_driverless(root: Path) -> dict[str, str | None]:
    """The drivers of cards for RDMA without a device of the kernel, by PCI address."""
    drivers: dict[str, str | None] = {}
    for card in sorted((root / "bus/pci/devices").glob("*")):
        name = f"{read_text(card / 'vendor')}:{read_text(card / 'device')}"
        is_rdma = (read_text(card / "class") or "").startswith(_INFINIBAND) or _EFA.fullmatch(name)
        if is_rdma and not any((card / "infiniband").glob("*")):
            drivers[card.name] = (card / "driver").resolve().name if (card / "driver").exists() else None
    return drivers


def _read_counters(device: Path, port: Path, card: Path) -> dict[str, int]:
    """Counters of a port by the names of sysfs, EFA's of its device included."""
    folders = (device / "hw_counters", port / "counters", port / "hw_counters")
    files = [path for folder in folders for path in folder.glob("*") if path.name != "lifespan"]
    layer = read_text(port / "link_layer")
    tool: dict[str, int] = {}
    if layer == "InfiniBand" and not any((port / "counters").glob("*")):
        for options in ([], ["-x"]):  # the second ones have 64 bits, and on old cards lack errors
            tool |= _ask("perfquery", *options, "-C", device.name, "-P", port.name)
        tool = {_name_of(name): count for name, count in tool.items()}
    nets = list((card / "net").glob("*")) if layer == "Ethernet" else []
    if len(nets) == 1:  # of several, it is unknown which one is the port
        files += [nets[0] / "carrier_down_count", nets[0] / "statistics/rx_crc_errors"]
        tool |= _ask("ethtool", "-S", nets[0].name)
    counts = {path.name: read_text(path) or "" for path in files}
    return {**tool, **{name: int(count) for name, count in sorted(counts.items()) if count.isdecimal()}}


def _ask(*argv: str) -> dict[str, int]:
    """The counters that a program prints; none where it is missing or fails."""
    printed = output_of(argv, {**os.environ, "LC_ALL": "C"}, _TOOL_S) or ""
    return {name: int(count) for name, count in _COUNTER.findall(printed)}


def _name_of(name: str) -> str:
    """The name in sysfs of a counter of perfquery: `LinkDownedCounter` is `link_downed`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().removesuffix("_counter")
    return {"vl15_dropped": "VL15_dropped"}.get(words, words)


def _number(path: Path) -> float | None:
    match = _NUMBER.match(read_text(path) or "")
    return float(match[0]) if match else None


def _word(path: Path) -> str:
    """The name behind the number, as in `4: ACTIVE`."""
    return (read_text(path) or "").rpartition(":")[2].strip()
