"""RDMA ports of a node as sysfs has them: their state, rate, partitions and counters, and cards without a driver.

InfiniBand, RoCE and EFA. Reading a folder is all that this does, so it works on a captured tree of files as well.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
_INFINIBAND = "0x0207"  # PCI class
_EFA = re.compile(r"0x1d0f:0xefa[0-9a-f]", re.ASCII)
_OCTETS = 4  # port_xmit_data counts words


class RdmaPort(ProbeAnswer):
    """One port of an RDMA device; None for what sysfs lacks."""

    name: str  # device and port, `mlx5_0/1`
    state: str | None  # `ACTIVE`, `DOWN`, `INIT`, ...
    physical: str | None  # `LinkUp`, `Polling`, `Disabled`, ...
    gbit_s: float | None  # its rate; one that is down has 10 Gb/s or nothing here
    lanes: int | None
    layer: str | None  # `InfiniBand`, `Ethernet`, or `Unspecified` for EFA
    board: str | None  # kind of the card: ports of one kind are alike
    bus: str | None  # PCI address of the card
    slot: str | None  # its PCIe link, `32.0 GT/s x16`
    pkeys: tuple[str, ...]  # its partitions
    counters: Mapping[str, int]  # by the names of sysfs

    @property
    def is_up(self) -> bool:
        """True if it can carry data."""
        return self.state == "ACTIVE"

    @property
    def kind(self) -> tuple[str | None, str | None]:
        """The kind of its card and its link layer, which its siblings share."""
        return self.board, self.layer

    @property
    def sent_bytes(self) -> int:
        """Bytes sent since the counters began."""
        return self.counters.get("tx_bytes", self.counters.get("port_xmit_data", 0) * _OCTETS)


class IdleCard(ProbeAnswer):
    """A PCI card for RDMA without a device of the kernel."""

    bus: str
    driver: str | None  # None where no driver has it


class RdmaFacts(ProbeAnswer):
    """The RDMA hardware of a node."""

    ports: tuple[RdmaPort, ...]
    idle: tuple[IdleCard, ...]


def facts(context: RankContext, log: ProbeLog) -> RdmaFacts:
    """Answer with the ports of this node. `config`: `sysfs`, where sysfs is mounted, `$VARIABLES` replaced."""
    log.phase("RDMA ports in sysfs")
    return read_rdma(Path(os.path.expandvars(context.config["sysfs"])))


def read_rdma(sysfs: Path) -> RdmaFacts:
    """Read the RDMA hardware of a node from its sysfs."""
    devices = sorted((sysfs / "class/infiniband").glob("*"))
    ports = tuple(port for device in devices for port in _read_device(device))
    return RdmaFacts(ports=ports, idle=tuple(_find_idle(sysfs)))


def _read_device(device: Path) -> Iterator[RdmaPort]:
    card = device / "device"
    board = _text(device / "board_id") or _text(device / "hca_type") or _text(card / "device")
    for folder in sorted((device / "ports").glob("*"), key=lambda path: (len(path.name), path.name)):
        rate = _RATE.match(_text(folder / "rate") or "")
        layer = _text(folder / "link_layer")
        counters = _read_counters(folder / "counters") | _read_counters(folder / "hw_counters")
        if layer == "Ethernet":
            for name in ("carrier_down_count", "statistics/rx_crc_errors"):
                counts = [_number(path / name) for path in (card / "net").glob("*")]
                if len(counts) == 1 and counts[0] is not None:  # of several, it is unknown which one is the port
                    counters[Path(name).name] = counts[0]
        pkeys = {key for path in (folder / "pkeys").glob("*") if (key := _text(path)) not in {None, "0x0000"}}
        speed, width = (_text(card / f"current_link_{what}") for what in ("speed", "width"))
        known = speed is not None and width is not None and "nknown" not in speed and width not in {"0", "63", "255"}
        yield RdmaPort(
            name=f"{device.name}/{folder.name}", state=_word(folder / "state"), physical=_word(folder / "phys_state"),
            gbit_s=float(rate[1]) if rate else None, lanes=int(rate[2]) if rate and rate[2] else None, layer=layer,
            board=board, bus=card.resolve().name if card.exists() else None,
            slot=f"{(speed or '').removesuffix(' PCIe')} x{width}" if known else None,
            pkeys=tuple(sorted(key for key in pkeys if key)), counters=counters,
        )  # fmt: skip


def _find_idle(sysfs: Path) -> Iterator[IdleCard]:
    for card in sorted((sysfs / "bus/pci/devices").glob("*")):
        name = f"{_text(card / 'vendor')}:{_text(card / 'device')}"
        is_rdma = (_text(card / "class") or "").startswith(_INFINIBAND) or _EFA.fullmatch(name)
        if is_rdma and not any((card / "infiniband").glob("*")):
            driver = card / "driver"
            yield IdleCard(bus=card.name, driver=driver.resolve().name if driver.exists() else None)


def _read_counters(folder: Path) -> dict[str, int]:
    counts = {path.name: _number(path) for path in folder.glob("*") if path.name != "lifespan"}
    return {name: count for name, count in sorted(counts.items()) if count is not None}


def _number(path: Path) -> int | None:
    text = _text(path) or ""
    return int(text) if _NUMBER.fullmatch(text) else None


def _word(path: Path) -> str | None:
    """The name behind the number, as in `4: ACTIVE`."""
    text = _text(path)
    return None if text is None else text.rpartition(":")[2].strip()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
