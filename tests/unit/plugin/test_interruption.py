"""Signals that a session hears: how many are raised, and where."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pytest_llmbench.plugin.interruption import Interruption


@pytest.fixture
def asked() -> list[str]:
    """With what pytest was asked to end."""
    return []


@pytest.fixture
def interruption(asked: list[str]) -> Iterator[Interruption]:
    """One that takes the signals of this process."""
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
    with interruption.bearing(0):
        signal.raise_signal(signal.SIGINT)
    assert asked == ["ended by Ctrl-C"]


def test_what_ends_pytest_is_not_cut_short(interruption: Interruption) -> None:
    """The first was raised in the body of a test, and the second comes while pytest ends for it."""
    with interruption.bearing(0), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interruption.pytest_keyboard_interrupt()
    signal.raise_signal(signal.SIGINT)
    with interruption.bearing(1):
        signal.raise_signal(signal.SIGINT)
