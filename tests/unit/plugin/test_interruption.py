"""Signals that a session hears: how many are raised, and where."""

import signal
import time
from collections.abc import Iterator

import pytest

from pytest_llmbench.plugin import interruption as module
from pytest_llmbench.plugin.interruption import Interruption


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def interruption(asked: list[str]) -> Iterator[Interruption]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    taken = Interruption()
    taken.take_signals(asked.append)
    yield taken
    taken.give_signals_back()
    signal.signal(signal.SIGINT, before)


def test_the_second_is_raised_and_later_ones_are_borne(interruption: Interruption, asked: list[str]) -> None:
    """A third would end what pytest does for the second, and the reports with it."""
    signal.raise_signal(signal.SIGINT)
    assert asked == ["ended by Ctrl-C"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(number)
    with interruption.ignoring(0):
        signal.raise_signal(signal.SIGINT)
    assert asked == ["ended by Ctrl-C"]


def test_what_ends_pytest_is_not_cut_short(interruption: Interruption) -> None:
    """The first was raised in the body of a test, and the second comes while pytest ends for it."""
    with interruption.ignoring(0), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interruption.pytest_keyboard_interrupt()
    signal.raise_signal(signal.SIGINT)
    with interruption.ignoring(1):
        signal.raise_signal(signal.SIGINT)


def test_limits_end_the_session(interruption: Interruption, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MINUTE_S", 0.0)

    def body() -> None:
        interruption.end_after(90)
        time.sleep(60)

    with interruption.ignoring(0), pytest.raises(KeyboardInterrupt, match="--llmbench-session-time 01:30:00"):
        body()
    assert interruption.by == "--llmbench-session-time 01:30:00"
    assert asked == []


def test_a_limit_is_asked_for_where_others_have_the_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MINUTE_S", 0.0)
    asked: list[str] = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = signal.Signals[name]
        monkeypatch.setitem(module._DEFAULTS, number, object())  # so it is not the handler that is there
    taken = Interruption()
    taken.take_signals(asked.append)
    taken.end_after(1)
    assert taken.received.wait(20)
    taken.give_signals_back()
    assert taken.by == "--llmbench-session-time 00:01:00"


def test_a_limit_after_the_end_sends_no_signal(interruption: Interruption, asked: list[str]) -> None:
    """The signal would end this process, whose handlers are those of before."""
    interruption.end_after(1)
    interruption.give_signals_back()
    interruption._reach("--llmbench-session-time 00:01:00")
    assert interruption.by is None
    assert asked == []
