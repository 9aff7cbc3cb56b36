"""What Xids mean."""

import pytest

from pytest_llmbench.checks.gpu.kernel_log import KernelEvent
from pytest_llmbench.checks.gpu.xid import XIDS, meaning
from pytest_llmbench.core.record.health import Severity


def event(code: int, text: str = "", *, switch: bool = False) -> KernelEvent:
    return KernelEvent(switch=switch, code=code, bus="0000:10:00.0", text=text)


@pytest.mark.parametrize(
    ("severity", "codes"),
    [
        (Severity.MONITOR, (13, 31, 43, 45, 63, 92, 94, 121)),
        (Severity.RESET, (48, 62, 64, 74, 95, 119, 120, 140, 143, 144, 150)),
        (Severity.REBOOT, (79,)),
        (Severity.ISOLATE, (54,)),
        (Severity.RESET, (0, 30, 999)),
    ],
)
def test_severities_follow_the_published_actions(severity: Severity, codes: tuple[int, ...]) -> None:
    assert {meaning(event(code))[0] for code in codes} == {severity}


@pytest.mark.parametrize(
    ("wanted", "severity"),
    [
        ("None", "MONITOR"),
        ("GPU Reset Required", "RESET"),
        ("Node Reboot Required", "REBOOT"),
        ("Drain P2P", "RESET"),
        ("?", "RESET"),
    ],
)
def test_the_driver_says_itself_what_it_wants(wanted: str, severity: str) -> None:
    text = f"GPU recovery action changed from 0x2 (Node Reboot Required) to 0x1 ({wanted})"
    assert meaning(event(154, text))[0] == severity


def test_switches_say_whether_an_error_is_fatal() -> None:
    assert meaning(event(20034, "Fatal, Link 48", switch=True))[0] is Severity.RESET
    assert meaning(event(22013, "Non-fatal, Link 48", switch=True))[0] is Severity.MONITOR


@pytest.mark.parametrize("code", range(144, 151))
def test_errors_of_links_are_graded_by_the_drivers_word(code: int) -> None:
    """A nonfatal one comes thousands of times an hour while the link keeps running."""
    assert meaning(event(code, "RLW_RXPIPE Nonfatal XC0 i0 Link 13")).severity is Severity.MONITOR
    assert meaning(event(code, "NETIR_LINK_EVT Fatal XC0 i0 Link 00")).severity is Severity.RESET
    assert meaning(event(code)).severity is Severity.RESET


def test_every_code_is_listed_once_and_in_words() -> None:
    assert all(words for _, words in XIDS.values())
    assert 154 not in XIDS
