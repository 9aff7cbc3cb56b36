"""Small parts that pytest calls from its start on; they are idle until a session of ours begins.

So a session that begins with the first test of ours has missed nothing.
"""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.options import run_dir_of
from pytest_llmbench.plugin.ours import send_session
from pytest_llmbench.plugin.output.junit import JUnit


class Early:
    """The parts that a process which owns the runs registers in any session, and the id and folder of one of ours.

    They are registered before pytest's own writer of XML, to be called after it.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.id = layout.new_id()
        self.folder = run_dir_of(config) / self.id
        self.interruption = Interruption()
        config.pluginmanager.register(self.interruption, "llmbench-interruption")
        self.junit = JUnit(config)


class EarlyController:
    """A controller of xdist before its session begins: only the workers see which tests are ours.

    Attributes:
        session: pytest's, from the loop of its tests on.
        over: whether that loop is.
    """

    def __init__(self, early: Early, begin: Callable[[], None]) -> None:
        self.session: pytest.Session | None = None
        self.over = False
        self.early = early
        self._begin = begin

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker the session that begins if it has tests of ours."""
        send_session(node, self.early.id, self.early.folder)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Begin if the worker that has collected has planned something. Tests run only after all have collected."""
        self._begin_if_planned()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Begin at the end for tests that were planned while xdist ended the session, which then skips the hook."""
        self.session = session
        try:
            return (yield)
        finally:
            self.over = True
            self._begin_if_planned()

    def _begin_if_planned(self) -> None:
        if (self.early.folder / layout.WORKERS_PLAN).exists():
            self._begin()
