"""Signals and `--llmbench-session-time` end a session in order, with all hooks and reports."""

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_llmbench.core.durations import format_minutes

_MINUTE_S = 60.0
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
_ALL = sys.maxsize
_RAISED_AT_MOST = 2  # as the first or the second of a session
# Major numbers of Linux: consoles, /dev/tty, pseudo-terminals. `isatty` is false for a terminal that hung up.
_TERMINALS = {4, 5, *range(136, 144)}


class Interruption:
    """Takes the signals of a session with runs.

    The first signal is raised as a KeyboardInterrupt at once only in the body of a test and in the setup of a fixture;
    anywhere else it is noted, and pytest ends after what it is doing. The second is raised wherever it comes, but for
    the end of the session: there the reports come first. Later ones are ignored: they would interrupt pytest while it
    ends for the second.

    Attributes:
        by: the first signal, or the limit that was reached, in words; None until then.
        received: set with the first signal.
    """

    def __init__(self) -> None:
        self.by: str | None = None
        self.received = threading.Event()
        self._began = time.monotonic()
        self._limit = ""
        self._timer: threading.Timer | None = None
        self._giving_back = threading.Lock()
        self._heard = 0
        self._ignored = 1
        self._old: dict[signal.Signals, Any] = {}
        self._ask_to_end: Callable[[str], None] = lambda _by: None

    def take_signals(self, ask_to_end: Callable[[str], None]) -> None:
        """Handle signals from now on, unless another handler is installed.

        `ask_to_end` is called with the first signal where that is only noted.
        """
        self._ask_to_end = ask_to_end
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) is default:
                self._old[number] = signal.signal(number, self._hear)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Started by `nohup pytest ... &`. Our child processes would inherit that SIGINT is ignored, and submitit
            # ends ranks by SIGINT. With a handler, they start with the default.
            signal.signal(signal.SIGINT, lambda _number, _frame: None)

    def end_after(self, minutes: int) -> None:
        """End the session, as the first signal does, when it has lasted so long; `take_signals` comes before."""
        left_s = max(0.0, _MINUTE_S * minutes - (time.monotonic() - self._began))
        self._timer = threading.Timer(left_s, self._reach, [f"--llmbench-session-time {format_minutes(minutes)}"])
        self._timer.daemon = True
        self._timer.start()

    def _reach(self, limit: str) -> None:
        """Send the main thread a signal, which alone ends a test body that sleeps."""
        with self._giving_back:
            if self._heard or self._timer is None:
                return  # the session ends already
            self._limit = limit
            if self._old:
                signal.pthread_kill(threading.main_thread().ident or 0, next(iter(self._old)))
                return
        self.by = limit  # other handlers have all signals
        self.received.set()
        self._ask_to_end(f"ended by {limit}")

    def give_signals_back(self) -> None:
        """Restore the earlier handlers. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        # A limit that is reached meanwhile would send a signal that ends this process.
        with self._giving_back:
            self._timer = None
            while self._old:
                number, handler = self._old.popitem()
                signal.signal(number, handler)

    def interrupt(self) -> None:
        """Raise what the first signal raises."""
        raise KeyboardInterrupt(self.by)

    def ignore_all(self) -> None:
        """Ignore all further signals: the session ends anyway, and its reports come first."""
        self._ignored = _ALL

    @contextlib.contextmanager
    def ignoring(self, signals: int) -> Iterator[None]:
        """Raise a signal that comes meanwhile if it exceeds the number of signals to ignore."""
        before, self._ignored = self._ignored, signals
        try:
            yield
        finally:
            self._ignored = before

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self) -> Generator[None, object, object]:
        """Let the first signal end a test's body at once; innermost, so that wrappers of others stay whole."""
        with self.ignoring(0):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_fixture_setup(self) -> Generator[None, object, object]:
        """Let the first signal end the setup of a fixture at once."""
        with self.ignoring(0):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ignore further signals, because pytest ends by the one that was raised."""
        self.ignore_all()

    def pytest_sessionfinish(self) -> None:
        """Give the signals back once the XML is written: registered before its writer, this is called after it."""
        self.give_signals_back()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard += 1
        if self._heard == 1:
            self.by = self._limit or ("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
            self.received.set()
        if number == signal.SIGHUP:
            _let_go_of_terminals()
        if self._ignored < self._heard <= _RAISED_AT_MOST:
            self.interrupt()
        if self._heard == 1 and self._ignored < _ALL:
            self._ask_to_end(f"ended by {self.by}")


def _let_go_of_terminals() -> None:
    """Discard output to a terminal that hung up, where a failing write would end the reports."""
    for opened in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            number = int(opened.name)
            status = os.fstat(number)
            if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in _TERMINALS:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, number)
                os.close(nowhere)
