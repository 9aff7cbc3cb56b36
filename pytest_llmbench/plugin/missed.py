"""Events of pytest before a session of ours began, for the parts that are registered when it does."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.ours import tell_worker
from pytest_llmbench.plugin.pytest_private import Instant


class MissedEvents:
    """Events before the session of ours began, as far as its reports have them.

    Attributes:
        session: pytest's; None until it starts.
        start: time at which it started.
        collected: reports of the collectors that failed or were skipped.
    """

    def __init__(self) -> None:
        self.session: pytest.Session | None = None
        self.start: Instant | None = None
        self.collected: list[pytest.CollectReport] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take the time."""
        self.session, self.start = session, Instant()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what the XML shows of a collector."""
        if not report.passed:
            self.collected.append(report)


class MissedLoop(MissedEvents):
    """Events before the session began in a controller of xdist, where only the workers see which tests are ours.

    Attributes:
        id: that of the session, if it begins.
        folder: its folder.
        over: whether the loop of the tests is.
    """

    def __init__(self, run_dir: Path, begin: Callable[[], None]) -> None:
        """Take the folder of all sessions, and a function that begins this one."""
        super().__init__()
        self.id = layout.new_id()
        self.folder = run_dir / self.id
        self.over = False
        self._begin = begin

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker the session that begins if it has tests of ours."""
        tell_worker(node, self.id, self.folder)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Begin if the worker that has collected has planned something. Tests run only after all have collected."""
        self._begin_if_planned()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Begin at the end for tests that were planned while xdist ended the session, which then skips the hook."""
        try:
            return (yield)
        finally:
            self.over = True
            self._begin_if_planned()

    def _begin_if_planned(self) -> None:
        if (self.folder / layout.WORKERS_PLAN).exists():
            self._begin()
