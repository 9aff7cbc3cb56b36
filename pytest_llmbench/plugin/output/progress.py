"""The live view in pytest's own terminal: a table under the results, or plain lines on other kinds of output."""

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from typing import Literal

import pytest

from pytest_llmbench.core.text import harmless
from pytest_llmbench.plugin.options import options_of
from pytest_llmbench.plugin.pytest_private import get_file, set_file
from pytest_llmbench.reporting.live import StateLines, table_lines
from pytest_llmbench.reporting.screen import BlockScreen
from pytest_llmbench.session.live.snapshot import LiveSnapshot

_REDRAW_S, _MOST_S = 1.0, 2.0
# A large table is drawn less often: at most this share of one processor goes into it.
_SHARE = 0.02
# Rows of the terminal that the table leaves to the results above it.
_LEFT = 4
_NO = {"", "0", "false", "no"}


class LiveLine:
    """Shows how the runs stand while tests wait for them, and writes the plain lines of a session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._screen: BlockScreen | None = None
        self._lines = StateLines()
        self._last = float("-inf")
        self._pause_s = _REDRAW_S
        self._shown: LiveSnapshot | None = None

    def show(self, snapshot: LiveSnapshot | None) -> None:
        """Show a snapshot of the session, if it is a new one and time for it."""
        now = time.monotonic()
        if snapshot is None or snapshot is self._shown or now - self._last < self._pause_s:
            return
        self._last, self._shown = now, snapshot
        kind = self._kind()
        if kind == "table":
            began = time.thread_time()
            self._draw(snapshot)
            self._pause_s = min(max(_REDRAW_S, (time.thread_time() - began) / _SHARE), _MOST_S)
        elif kind == "lines":
            for line in self._lines.update(snapshot):
                self.note(line)

    def note(self, text: str) -> None:
        """Write one plain line that stays, marked as ours."""
        self.print(f"llmbench: {text}")

    def print(self, line: str) -> None:
        """Write one plain line that stays."""
        with self._terminal() as reporter:
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(harmless(line))

    def take(self, notes: deque[str]) -> None:
        """Write the notes there are, and take them away."""
        while notes:
            self.note(notes.popleft())

    def clear(self) -> None:
        """Take the table away, before a test has the terminal."""
        if self._screen is not None and self._screen.is_drawn:
            with self._terminal():
                self._screen.clear(shutil.get_terminal_size()[0])

    def close(self) -> None:
        """Take the table away, and give pytest its file back."""
        self.clear()
        screen, self._screen = self._screen, None
        reporter = self._reporter
        if screen is not None and reporter is not None and get_file(reporter) is screen:
            set_file(reporter, screen.file)

    def _kind(self) -> Literal["table", "lines", "nothing"]:
        asked = options_of(self._config).live
        if asked == "off":
            return "nothing"
        reporter = self._reporter
        able = reporter is not None and reporter.isatty and os.environ.get("TERM", "").lower() not in {"", "dumb"}
        in_ci = os.environ.get("CI", "").lower() not in _NO
        wanted = asked == "on" or not (in_ci or self._config.getoption("capture", "fd") == "no")
        return "table" if able and wanted else "lines"

    def _draw(self, snapshot: LiveSnapshot) -> None:
        with self._terminal() as reporter:
            if reporter is None:
                return
            if self._screen is None:
                self._screen = BlockScreen(get_file(reporter))
                set_file(reporter, self._screen)
            width, height = shutil.get_terminal_size()
            coloured = reporter.hasmarkup and not os.environ.get("NO_COLOR")
            # A line as wide as the terminal wraps on some.
            lines = table_lines(snapshot, max(10, width - 1), max(1, height - _LEFT), coloured=coloured)
            self._screen.draw(lines, width)

    @property
    def _reporter(self) -> pytest.TerminalReporter | None:
        # Asked for anew each time: it is registered after us.
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return reporter

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[pytest.TerminalReporter | None]:
        """The terminal, with pytest's capturing out of the way."""
        capture, reporter = self._config.pluginmanager.get_plugin("capturemanager"), self._reporter
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            yield reporter
            if reporter is not None:
                reporter.flush()
