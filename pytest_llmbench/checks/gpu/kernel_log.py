"""Reads the NVIDIA driver's errors out of the kernel's log, on the node (`Condensed`) and where it is judged."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.readers.pci import pci_address

# The driver always writes a comma after the code: without it, the line was cut and so may be the code.
_EVENT = re.compile(r"(?<![A-Za-z])(S?)Xid \(([^()]*)\): 0*(\d{1,6}),(.*)", re.ASCII)
# An application's own words may hold "Xid"; the driver's begin with one of these.
_DRIVER = re.compile(r"NVRM|nvidia")
_BUS = r"(?P<bus>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
# The driver writes these lines for some faults in addition to an Xid, or instead of one that it could not write.
_FALLEN = re.compile(rf"NVRM: (?:.*?{_BUS})?.*fallen off the bus", re.IGNORECASE)
_NOT_INITIALIZED = re.compile(
    rf"NVRM: (?:.*?{_BUS})?.*(?:RmInitAdapter failed|rm_init_adapter failed|Cannot initialize GSP|"
    r"failed to (?:load|boot|initialize) GSP|"
    r"GSP\b.{0,60}(?:timed out|timeout|is hung|boot(?:strap)? failed|init(?:ialization)? failed))",
    re.IGNORECASE,
)
# One message of three lines, in a log that has each line by itself: "NVRM: The NVIDIA GPU 0000:5d:00.0",
# "NVRM: (PCI ID: 10de:2330) installed in this system has", "NVRM: fallen off the bus and is not responding".
_NAMED = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}", re.IGNORECASE)
_LINES_OF_A_MESSAGE = 4
FALLEN_OFF_THE_BUS, NOT_INITIALIZED = 79, 143
# The node keeps the lines of the driver's log that contain one of these words or "Xid".
_WORDS = (b"fallen off", b"The NVIDIA GPU", b"GSP", b"init_adapter failed", b"InitAdapter failed")
_MOST_KEPT = 2000
_WORDS_WITH_SEVERITY = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelEvent:
    """An error that the driver wrote down."""

    switch: bool  # whether it is of an NVSwitch (an SXid), or of a GPU
    code: int
    bus: str  # PCI address of the device, `0000:1b:00.0`; empty for a GPU that the line does not name
    text: str
    times: int = 1

    @property
    def fatal(self) -> bool:
        return self.switch and self.text.startswith(("Fatal", "Severity 1"))

    @property
    def nonfatal(self) -> bool:
        """True if the driver calls it nonfatal, as it does for errors of links; its first word on that counts."""
        word = re.search(r"\b(?:(non-?)?fatal)\b", self.text, re.IGNORECASE)
        return word is not None and word[1] is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverLog:
    """The driver's errors in their order, and lines about one in unknown words."""

    events: tuple[KernelEvent, ...]
    unreadable: tuple[str, ...]


class Condensed:
    """A log in which the errors that repeat are counted: the first line and the last line of each are kept.

    A link that fails and recovers writes hundreds of thousands of lines, and the error in front of them matters.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[int, bytes]] = {}
        self._last: dict[bytes, tuple[int, bytes]] = {}
        self._counts: Counter[bytes] = Counter()
        self._lines = 0

    def add(self, line: bytes) -> None:
        """Take the next line of the log if it is about an error."""
        self._lines += 1
        if b"Xid" in line or any(word in line for word in _WORDS):
            kind = _kind_of(line)
            self._counts[kind] += 1
            self._last[kind] = self._lines, line
            if kind not in self._first:
                self._first[kind] = self._lines, line

    @property
    def whole(self) -> bool:
        """True if all kinds of errors are kept."""
        return len(self._first) <= _MOST_KEPT

    def lines(self) -> list[tuple[str, int]]:
        """Return the lines in their order, each with the number of lines that it stands for."""
        last = [(*self._last[kind], count - 1) for kind, count in self._counts.items() if count > 1]
        rows = sorted([(*line, 1) for line in self._first.values()] + last)[-_MOST_KEPT:]
        return [(line.decode(errors="replace"), times) for _, line, times in rows]


def _kind_of(line: bytes) -> bytes:
    """The part that lines about the same error share. It avoids `re`: a log may have a million lines."""
    begin = line.find(b"Xid (")
    end = line.find(b",", begin)
    if begin < 0 or end < 0:
        return line[max(0, line.find(b"NVRM")) :]
    words = line[end : end + _WORDS_WITH_SEVERITY]
    # Xid 154 names the action that the driver asks for, behind "to".
    severity = b"nonfatal" if b"onfatal" in words or b"on-fatal" in words else b"fatal" if b"atal" in words else b""
    return line[max(0, begin - 1) : end] + severity + (line.rpartition(b" to ")[2] if b" to 0x" in line else b"")


def read_driver_log(lines: Sequence[str], times: Sequence[int] = ()) -> DriverLog:
    """Find the driver's errors in lines of dmesg or of the journal; `times` are the lines that each one stands for."""
    events: list[KernelEvent] = []
    unreadable: list[str] = []
    named, since = "", 0
    for line, count in zip(lines, times or [1] * len(lines), strict=True):
        since += 1
        if match := _NAMED.search(line):
            named, since = match["bus"], 0
        if match := _EVENT.search(line):
            switch, where, code, words = match.groups()
            bus = pci_address(where)
            events.append(KernelEvent(switch=bool(switch), code=int(code), bus=bus, text=words.strip(), times=count))
        elif fault := _find_fault(line):
            code, words, bus = fault
            bus = bus or (named if since < _LINES_OF_A_MESSAGE else "")
            events.append(KernelEvent(switch=False, code=code, bus=bus and pci_address(bus), text=words, times=count))
        elif "Xid" in line and _DRIVER.search(line):
            unreadable.append(line.strip()[:300])
    return DriverLog(events=tuple(events), unreadable=tuple(unreadable))


def _find_fault(line: str) -> tuple[int, str, str] | None:
    """The code of the Xid that stands for a line without one, its words, and the device if it names one."""
    if match := _FALLEN.search(line):
        return FALLEN_OFF_THE_BUS, "fallen off the bus", match["bus"] or ""
    if match := _NOT_INITIALIZED.search(line):
        return NOT_INITIALIZED, line[line.find("NVRM") :].removeprefix("NVRM: ").strip()[:200], match["bus"] or ""
    return None
