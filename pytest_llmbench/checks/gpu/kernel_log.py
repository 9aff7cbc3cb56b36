"""Reader of the NVIDIA driver's lines in the kernel's log: Xids of GPUs, and SXids of NVSwitches."""

import re
from dataclasses import dataclass

from pytest_llmbench.readers.pci import pci_address

# The driver always writes a comma after the code: without it, the line was cut and so may be the code.
_EVENT = re.compile(r"(?<![A-Za-z])(S?)Xid \(([^()]*)\): 0*(\d{1,6}),(.*)", re.ASCII)
# An application's own words may hold "Xid"; the driver's begin with one of these.
_DRIVER = re.compile(r"NVRM|nvidia")
# Said for some faults beside the Xid, or in its place where the driver could not even write that.
_FALLEN = re.compile(
    r"NVRM: .*?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]).*fallen off the bus", re.IGNORECASE
)
_FALLEN_OFF_THE_BUS = 79


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelEvent:
    """An error that the driver wrote down.

    Attributes:
        switch: whether it is of an NVSwitch (an SXid) and not of a GPU.
        bus: PCI address of the device, `0000:1b:00.0`.
    """

    switch: bool
    code: int
    bus: str
    text: str

    @property
    def fatal(self) -> bool:
        """Whether an NVSwitch calls it fatal; GPUs do not say."""
        return self.switch and self.text.startswith("Fatal")


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverLog:
    """Attributes: `events` in their order, and `unreadable` lines that tell of one in words that are not known."""

    events: tuple[KernelEvent, ...]
    unreadable: tuple[str, ...]


def read_driver_log(text: str) -> DriverLog:
    """Find the driver's errors among the lines of dmesg or of the journal. Any other line is of no interest."""
    events: list[KernelEvent] = []
    unreadable: list[str] = []
    for line in text.splitlines():
        if found := _EVENT.search(line):
            switch, where, code, words = found.groups()
            events.append(KernelEvent(switch=bool(switch), code=int(code), bus=pci_address(where), text=words.strip()))
        elif gone := _FALLEN.search(line):
            bus = pci_address(gone[1])
            events.append(KernelEvent(switch=False, code=_FALLEN_OFF_THE_BUS, bus=bus, text="fallen off the bus"))
        elif "Xid" in line and _DRIVER.search(line):
            unreadable.append(line.strip()[:300])
    return DriverLog(events=tuple(events), unreadable=tuple(unreadable))
