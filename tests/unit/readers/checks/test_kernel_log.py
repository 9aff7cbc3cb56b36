"""Finding the driver's errors in the kernel's log."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_llmbench.checks.gpu.kernel_log import Condensed, read_driver_log
from pytest_llmbench.checks.gpu.nodes.facts import KernelLog
from pytest_llmbench.checks.gpu.xid import meaning

_LINES = {
    "[ 12.1] NVRM: Xid (PCI:0000:10:00): 48, pid=811, name=python, An uncorrectable error": (False, 48, "0000:10:00.0"),
    "2026-01-01T00:00:00+00:00 n1 kernel: NVRM: Xid (0000:01:00): 31, Ch 0000000b": (False, 31, "0000:01:00.0"),
    "[1.5] NVRM: Xid (PCI:0000:C1:00 GPU-I:02): 13, Graphics Exception": (False, 13, "0000:c1:00.0"),
    "[1.5] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.": (False, 79, "0000:c1:00.0"),
    "[67.5] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48": (True, 20034, "0000:06:00.0"),
    "[67.6] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 01042, Non-fatal, Link 4": (True, 1042, "0000:06:00.0"),
    "[67.8] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.": (False, 79, "0000:91:00.0"),
}


@pytest.mark.parametrize(("line", "event"), _LINES.items())
def test_every_form_is_known(line: str, event: tuple[bool, int, str]) -> None:
    (found,) = read_driver_log([line]).events
    assert (found.switch, found.code, found.bus) == event
    assert found.fatal == (", Fatal" in line)


def test_an_error_that_is_cut_off_or_of_an_unknown_form_is_not_lost() -> None:
    log = read_driver_log(["[12.1] NVRM: Xid (PCI:0000:10:00): 11"])
    assert (len(log.events), len(log.unreadable)) == (0, 1)
    log = read_driver_log(["[1.0] NVRM: Xid without a number", "[2.0] myapp: got Xid 48?", "[3.0] usb 1-1: new device"])
    assert (log.events, log.unreadable) == ((), ("[1.0] NVRM: Xid without a number",))


_NOISE = st.from_regex(r"[ -W Y-~]{0,60}", fullmatch=True).filter(lambda noise: "NVRM" not in noise)


@given(st.lists(st.tuples(st.sampled_from([None, *_LINES]), _NOISE), max_size=8))
def test_every_error_is_found_among_any_other_lines(lines: list[tuple[str | None, str]]) -> None:
    quiet = [noise if line is None else line for line, noise in lines]
    log = read_driver_log(quiet)
    assert [(each.switch, each.code, each.bus) for each in log.events] == [_LINES[line] for line, _ in lines if line]


@given(st.sampled_from(list(_LINES)), st.data())
def test_an_error_that_was_cut_off_is_no_other_error(line: str, data: st.DataObject) -> None:
    log = read_driver_log([line[: data.draw(st.integers(0, len(line)))]])
    assert [(event.switch, event.code) for event in log.events] in ([], [_LINES[line][:2]])


_THREE_LINES = """[143.2] NVRM: The NVIDIA GPU 0000:5d:00.0
               NVRM: (PCI ID: 10de:2330) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[143.3] nvidia: probe of 0000:5d:00.0 failed with error -1
"""


@pytest.mark.parametrize(("text", "code", "bus"), [
    (_THREE_LINES, 79, "0000:5d:00.0"),
    ("[9.1] NVRM: GPU at 0000:3b:00.0 has fallen off the bus.", 79, "0000:3b:00.0"),
    ("[9.1] NVRM: fallen off the bus and is not responding to commands.", 79, ""),
    ("[9.1] NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x24:0x72:1417)", 143, "0000:81:00.0"),
    ("[9.1] NVRM: GPU 0000:81:00.0: rm_init_adapter failed, device minor number 3", 143, "0000:81:00.0"),
    ("[9.1] NVRM: kgspHealthCheck_TU102: *** GSP Timeout ***", 143, ""),
    ("[9.1] NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", 143, ""),
])  # fmt: skip
def test_faults_that_the_driver_reports_without_an_xid(text: str, code: int, bus: str) -> None:
    """Each counts as the Xid for the same fault."""
    assert [(event.code, event.bus) for event in read_driver_log(text.splitlines()).events] == [(code, bus)]


def test_what_a_healthy_driver_writes_is_no_fault() -> None:
    healthy = (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
        "NVRM: The NVIDIA probe routine was not called for 8 device(s).",
        "NVRM: GPU 0000:1b:00.0 is using GSP firmware version 580.95.05",
        "nvidia 0000:1b:00.0: enabling device (0140 -> 0142)",
    )
    assert read_driver_log(healthy).events == ()


def condensed(lines: list[str]) -> tuple[Condensed, list[tuple[str, int]]]:
    log = Condensed()
    for line in lines:
        log.add(line.encode())
    return log, log.lines()


def test_an_error_in_front_of_a_flood_is_kept() -> None:
    """The flood is two lines, with the number of the others."""
    fallen = "[1.0] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    flood = [f"[{n}.5] NVRM: Xid (PCI:0000:2a:00): 45, pid={n}, name=python" for n in range(5000)]
    log, kept = condensed(["[0.1] Linux version 6.8", fallen, *flood])
    assert log.whole
    assert kept == [(fallen, 1), (flood[0], 1), (flood[-1], 4999)]
    events = read_driver_log([line for line, _ in kept], [times for _, times in kept]).events
    assert [(event.code, event.times) for event in events] == [(79, 1), (45, 1), (45, 4999)]


_MEANING = st.sampled_from(
    [
        "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13", "145, RLW_RXPIPE Fatal XC0 i0 Link 13",
        "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "48, pid=811, name=python",
        "48, pid=812, name=python",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["1b", "2a"]), _MEANING), max_size=40))
def test_counting_loses_no_kind_of_error(events: list[tuple[str, str]]) -> None:
    """The same devices, codes and severities are found, as often as they were logged."""
    lines = [f"[{place}.0] NVRM: Xid (PCI:0000:{bus}:00): {text}" for place, (bus, text) in enumerate(events)]
    _, kept = condensed(lines)
    counted: Counter[tuple[str, int, str]] = Counter()
    for event in read_driver_log([line for line, _ in kept], [times for _, times in kept]).events:
        counted[event.bus, event.code, meaning(event).severity.name] += event.times
    every = read_driver_log(lines).events
    assert counted == Counter((event.bus, event.code, meaning(event).severity.name) for event in every)


def test_signs_that_end_a_line_elsewhere_are_part_of_it() -> None:
    """A driver may print a form feed or a separator of records: the counts of the lines must stay theirs."""
    torn = "[1.0] NVRM: Xid (PCI:0000:1b:00): 48, pid=1\x0c\x1e name=python"
    assert [event.times for event in read_driver_log([torn, "[2.0] usb\r1-1"], [3, 1]).events] == [3]
    with pytest.raises(ValidationError, match="1 times of 2 lines"):
        KernelLog(source="dmesg", whole=True, lines=(torn, torn), times=(1,), refused=())
