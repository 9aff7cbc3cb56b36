"""Finding the driver's errors in the kernel's log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.gpu.xid import read_driver_log

_LINES = {
    "[ 12.1] NVRM: Xid (PCI:0000:10:00): 48, pid=811, name=python, An uncorrectable error": (False, 48, "0000:10:00.0"),
    "2026-01-01T00:00:00+00:00 n1 kernel: NVRM: Xid (0000:01:00): 31, Ch 0000000b": (False, 31, "0000:01:00.0"),
    "[1.5] NVRM: Xid (PCI:0000:C1:00 GPU-I:02): 13, Graphics Exception": (False, 13, "0000:c1:00.0"),
    "[1.5] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.": (False, 79, "0000:c1:00.0"),
    "[67.5] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault": (
        True,
        20034,
        "0000:06:00.0",
    ),
    "[67.6] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 01042, Non-fatal, Link 4": (True, 1042, "0000:06:00.0"),
    "[67.8] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.": (False, 79, "0000:91:00.0"),
}


@pytest.mark.parametrize(("line", "event"), _LINES.items())
def test_every_form_is_known(line: str, event: tuple[bool, int, str]) -> None:
    (found,) = read_driver_log(line).events
    assert (found.switch, found.code, found.bus) == event
    assert found.fatal == (", Fatal" in line)


def test_an_error_whose_code_was_cut_off_is_counted() -> None:
    log = read_driver_log("[12.1] NVRM: Xid (PCI:0000:10:00): 11")
    assert (len(log.events), len(log.unreadable)) == (0, 1)


def test_a_form_that_is_not_known_is_not_lost() -> None:
    log = read_driver_log("[1.0] NVRM: Xid without a number\n[2.0] myapp: got Xid 48?\n[3.0] usb 1-1: new device\n")
    assert (log.events, log.unreadable) == ((), ("[1.0] NVRM: Xid without a number",))


_NOISE = st.from_regex(r"[ -W Y-~]{0,60}", fullmatch=True).filter(lambda noise: "NVRM" not in noise)


@given(st.lists(st.tuples(st.sampled_from([None, *_LINES]), _NOISE), max_size=8))
def test_every_error_is_found_among_any_other_lines(lines: list[tuple[str | None, str]]) -> None:
    quiet = [noise if line is None else line for line, noise in lines]
    log = read_driver_log("\n".join(quiet))
    assert [(each.switch, each.code, each.bus) for each in log.events] == [_LINES[line] for line, _ in lines if line]


@given(st.sampled_from(list(_LINES)), st.data())
def test_an_error_that_was_cut_off_is_no_other_error(line: str, data: st.DataObject) -> None:
    log = read_driver_log(line[: data.draw(st.integers(0, len(line)))])
    assert [(event.switch, event.code) for event in log.events] in ([], [_LINES[line][:2]])
