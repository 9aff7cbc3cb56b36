"""Live lines: how the runs stand while tests wait for them."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from pytest_llmbench.core.text import harmless
from pytest_llmbench.session.active import RunView

_REDRAW_S = 0.5
_PLAIN_LINE_S = 30.0


class LiveLine:
    """One line that is redrawn on a terminal; a plain line per run now and then anywhere else."""

    def __init__(self, config: pytest.Config, *, live: bool) -> None:
        self._plugins = config.pluginmanager
        self._wants_live = live
        self._drawn = False
        self._last = time.monotonic()

    def show(self, views: Sequence[RunView]) -> None:
        """Show how the runs stand, if it is time to."""
        reporter = self._reporter
        live = self._wants_live and reporter is not None and reporter.isatty
        period = _REDRAW_S if live else _PLAIN_LINE_S
        if not views or time.monotonic() - self._last < period:
            return
        self._last = time.monotonic()
        if live:
            self._draw(" | ".join(describe(view) for view in views))
        else:
            for view in views:
                self.note(describe(view))

    def note(self, text: str) -> None:
        """Write one plain line that stays, marked as ours."""
        self.print(f"llmbench: {text}")

    def print(self, line: str) -> None:
        """Write one plain line that stays."""
        with self._terminal() as reporter:
            if reporter is not None:
                self._erase(reporter)
                reporter.ensure_newline()
                reporter.write_line(harmless(line))

    def take(self, notes: deque[str]) -> None:
        """Write the notes there are, and take them away."""
        while notes:
            self.note(notes.popleft())

    def clear(self) -> None:
        """Take the live line away, before pytest writes its own."""
        if self._drawn:
            with self._terminal() as reporter:
                if reporter is not None:
                    self._erase(reporter)

    def _draw(self, text: str) -> None:
        with self._terminal() as reporter:
            if reporter is None:
                return
            if not self._drawn:
                reporter.ensure_newline()
            width = max(20, reporter._tw.fullwidth - 1)  # noqa: SLF001 - pytest offers no other way to the width
            reporter.rewrite(harmless(text).replace("\n", " ")[:width], erase=True)
            self._drawn = True

    def _erase(self, reporter: pytest.TerminalReporter) -> None:
        if self._drawn:
            reporter.rewrite("", erase=True)
            reporter.rewrite("")
            self._drawn = False

    @property
    def _reporter(self) -> pytest.TerminalReporter | None:
        # Asked for anew each time: it is registered after us.
        reporter: pytest.TerminalReporter | None = self._plugins.get_plugin("terminalreporter")
        return reporter

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[pytest.TerminalReporter | None]:
        """The terminal, with pytest's capturing out of the way."""
        capture, reporter = self._plugins.get_plugin("capturemanager"), self._reporter
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            yield reporter
            if reporter is not None:
                reporter.flush()


def describe(view: RunView) -> str:
    """One run in one line."""
    if view.state != "running":
        return f"{view.key}: {view.state}{f' ({view.detail})' if view.detail else ''}"
    speed = f", {view.words_per_s:,.0f} words/s" if view.words_per_s is not None else ""
    left = f", {view.eta_s:.0f} s to go" if view.eta_s is not None else ""
    return f"{view.key}: step {view.step}/{view.steps}{speed}{left}"
