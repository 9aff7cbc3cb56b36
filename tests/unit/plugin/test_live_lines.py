"""Live lines: one that is drawn anew on a terminal, and a plain one now and then anywhere else."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import pytest

from pytest_llmbench.plugin.output import progress
from pytest_llmbench.plugin.output.progress import LiveLine, describe
from pytest_llmbench.session.active import RunView

RUNNING = RunView(key="opt125m", state="running", step=12, steps=50, words_per_s=212_345.6, eta_s=41.6)
WAITING = RunView(key="opt350m", state="waiting", detail="job 7 PENDING (Priority)")


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """What `time.monotonic` would say."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the progress lines."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


class Screen:
    """A session's terminal, and what was written to it."""

    def __init__(self, config: pytest.Config, *, isatty: bool) -> None:
        self.text = io.StringIO()
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = self.text
        reporter._tw.hasmarkup = isatty
        reporter.isatty = isatty
        reporter._tw.fullwidth = 80

    def take(self) -> str:
        """What was written since this was last asked."""
        text = self.text.getvalue()
        self.text.seek(0)
        self.text.truncate()
        return text


@pytest.fixture
def config(pytester: pytest.Pytester) -> pytest.Config:
    """The configuration of a session whose output is not captured."""
    return pytester.parseconfigure("-s")


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (RUNNING, "opt125m: step 12/50, 212,346 words/s, 42 s to go"),
        (RunView(key="a", state="running", step=3, steps=8), "a: step 3/8"),  # its log says no times
        (WAITING, "opt350m: waiting (job 7 PENDING (Priority))"),
        (RunView(key="a", state="waiting"), "a: waiting"),
        (RunView(key="a", state="pending", detail="job 8 Resources"), "a: pending (job 8 Resources)"),
        (RunView(key="a", state="starting", detail="job 8", steps=50), "a: starting (job 8)"),
    ],
)
def test_a_view_is_one_line(view: RunView, line: str) -> None:
    """State in the queue, or step, words per second and time to go."""
    assert describe(view) == line


def test_a_log_gets_a_plain_line_every_30_s(config: pytest.Config, clock: Clock) -> None:
    """A run shorter than that shows none."""
    shown = LiveLine(config, live=True)
    screen = Screen(config, isatty=False)
    for second in range(30):
        clock.now = 1000.0 + second
        shown.show([RUNNING, WAITING])
    assert screen.take() == ""
    clock.now = 1030.0
    shown.show([RUNNING, WAITING])
    assert screen.take().splitlines() == [f"llmbench: {describe(RUNNING)}", f"llmbench: {describe(WAITING)}"]
    clock.now = 1059.9
    shown.show([RUNNING])
    assert screen.take() == ""
    clock.now = 1060.0
    shown.show([RUNNING])
    assert screen.take() == f"llmbench: {describe(RUNNING)}\n"


def test_a_terminal_gets_one_line_drawn_anew(config: pytest.Config, clock: Clock) -> None:
    """Twice a second at most, all runs in it, cut at the width, and gone when it is cleared."""
    shown = LiveLine(config, live=True)
    screen = Screen(config, isatty=True)
    shown.show([RUNNING])
    assert screen.take() == ""
    clock.now += 0.5
    shown.show([RUNNING, WAITING])
    drawn = screen.take()
    assert drawn.startswith("\r")
    assert drawn[1:].rstrip() == f"{describe(RUNNING)} | {describe(WAITING)}"[:79].rstrip()
    assert "\n" not in drawn
    clock.now += 0.4
    shown.show([RUNNING])
    assert screen.take() == ""
    shown.clear()
    assert screen.take().strip("\r ") == ""
    shown.clear()
    assert screen.take() == ""


def test_a_line_that_stays_does_not_mix_with_the_live_one(config: pytest.Config, clock: Clock) -> None:
    """The live line is taken away first, and a note stands on a line of its own."""
    shown = LiveLine(config, live=True)
    screen = Screen(config, isatty=True)
    clock.now += 1
    shown.show([RUNNING])
    screen.take()
    notes = deque(["Slurm job 7 asks for 4 nodes", "Slurm job 7 holds n1, n2, n3, n4"])
    shown.take(notes)
    assert not notes
    *_, first, second = screen.take().replace("\r", "\n").splitlines()
    assert (first, second) == ("llmbench: Slurm job 7 asks for 4 nodes", "llmbench: Slurm job 7 holds n1, n2, n3, n4")


def test_a_controller_never_draws(config: pytest.Config, clock: Clock) -> None:
    """Under xdist other lines come at any time: plain lines only."""
    shown = LiveLine(config, live=False)
    screen = Screen(config, isatty=True)
    clock.now += 29
    shown.show([RUNNING])
    assert screen.take() == ""
    clock.now += 1
    shown.show([RUNNING])
    assert screen.take() == f"llmbench: {describe(RUNNING)}\n"


def test_nothing_under_way_shows_nothing(config: pytest.Config, clock: Clock) -> None:
    """Also after a long time."""
    shown = LiveLine(config, live=True)
    screen = Screen(config, isatty=False)
    clock.now += 1000
    shown.show([])
    assert screen.take() == ""


def test_a_session_without_a_terminal_is_silent(pytester: pytest.Pytester, clock: Clock) -> None:
    """As with `-p no:terminal`."""
    config = pytester.parseconfigure("-p", "no:terminal")
    shown = LiveLine(config, live=True)
    clock.now += 1000
    shown.show([RUNNING])
    shown.note("a note")
    shown.clear()
