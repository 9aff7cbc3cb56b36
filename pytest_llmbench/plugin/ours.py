"""The beginning of a session of ours: as late as it can be, and the words that are known before it.

Most sessions of pytest have no test of ours, and the modules that make a session take a second to import. So this
module, `options` and `fixtures` import none of them. The session begins while pytest is configured where
the user gave an option of ours, and else with the first test of ours that is collected.
"""

import importlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import fixtures, options
from pytest_llmbench.plugin.pytest_private import Instant

RECIPE_MARKER = (
    "recipe(*names, repeats=1): run this test for these recipes only, with '*' for every one there is; without names, "
    "for your own recipes, or for every one where you have none. Make `repeats` runs of each, and judge them together. "
    "Provided by pytest-llmbench."
)
CHECK_MARKER = (
    "check(*names): run this test for these checks, or families of checks, only; without it, for every check there "
    "is. Provided by pytest-llmbench."
)
WORKER_INPUT = "llmbench"
_HOOKS = ("pytest_llmbench_engines", "pytest_llmbench_checks")
_PLACE = "llmbench-missed"
_SESSION = re.compile(r"\d{8}-\d{6}-")
_BEGUN = pytest.StashKey[bool]()


def is_session_folder(path: Path) -> bool:
    """Whether a folder has the results of a session of ours, and so no test: pytest would look at each run's folder."""
    named = path.name == layout.LATEST or _SESSION.match(path.name) is not None
    return named and (path / layout.JOURNAL).is_file()


class FeasibilityWarning(pytest.PytestWarning):
    """A threshold asks for more of the published peak than can be hoped for."""


class MissedEvents:
    """Events before the session of ours began, as far as its reports have them.

    Attributes:
        session: pytest's; None while it has not started.
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
    """The same in a controller of xdist, whose workers alone know whether any test is ours.

    Attributes:
        id: that of the session, if it begins.
        folder: its folder.
        over: whether the loop of the tests is.
    """

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self.id = layout.new_id()
        self.folder = options.run_dir_of(config) / self.id
        self.over = False
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker its session: it may have tests of ours."""
        tell_worker(node, self.id, self.folder)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Begin if the worker that has collected has planned something. No test runs before all have collected."""
        self._begin_if_planned()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Begin at the end for tests that were planned while xdist ended the session, of which it tells nothing."""
        try:
            return (yield)
        finally:
            self.over = True
            self._begin_if_planned()

    def _begin_if_planned(self) -> None:
        if (self.folder / layout.WORKERS_PLAN).exists():
            begin(self._config)


def keep_warning(config: pytest.Config) -> None:
    """Keep the warning a warning where an ini file turns warnings into errors: that is about code, not about numbers.

    The line comes after those of the ini file and before `-W` on the command line, which is obeyed.
    """
    config.addinivalue_line("filterwarnings", f"default::{__name__}.{FeasibilityWarning.__name__}")


def is_of_ours(thing: object) -> bool:
    """Whether this package made the type of a thing."""
    package = __name__.partition(".")[0]
    return any(str(kind.__module__).partition(".")[0] == package for kind in type(thing).__mro__)


def tell_worker(node: Any, session: str, folder: Path) -> None:
    """Tell a worker of xdist the id and folder of its session: plain text only, which is all that crosses."""
    node.workerinput[WORKER_INPUT] = {"id": session, "folder": str(folder)}


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def is_distributed(config: pytest.Config) -> bool:
    """Whether this process is an xdist controller."""
    return not is_worker(config) and config.getoption("dist", "no") != "no" and not config.option.collectonly


def is_begun(config: pytest.Config) -> bool:
    """Whether the session of ours has begun."""
    return config.stash.get(_BEGUN, False)


def begin_or_wait(config: pytest.Config) -> None:
    """Begin now if the user gave any option of ours; else with the first test of ours."""
    hooks = (getattr(config.hook, name).get_hookimpls() for name in _HOOKS)
    if options.asks_for_a_session(config) or any(hooks):
        with options.usage_errors():
            begin(config)
    else:
        config.pluginmanager.register(MissedLoop(config) if is_distributed(config) else MissedEvents(), _PLACE)
        if config.pluginmanager.hasplugin("pytester"):
            # It runs sessions in this process, and after each has Python forget the modules that the session imported
            # first: the next would import them again, and find classes of both.
            importlib.import_module("pytest_llmbench.plugin.register")


def begin(config: pytest.Config) -> None:
    """Begin the session, unless it has begun.

    Raises:
        ConfigError: a value in the ini file is illegal.
    """
    if is_begun(config):
        return
    config.stash[options.KEY] = options.read_options(config)
    from pytest_llmbench.plugin.register import register  # noqa: PLC0415  # this is the second that is saved

    config.stash[_BEGUN] = True
    register(config, config.pluginmanager.unregister(name=_PLACE))


def is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """Whether a test uses our fixture of that name: as it is, or through one that overrides it and asks for it.

    `run` and `reference` are words that other people's fixtures and parameters have for names, too.
    """
    if name not in metafunc.fixturenames:
        return False
    # pytest has no public way to what a fixture name stands for in a test.
    for definition in reversed(metafunc._arg2fixturedefs.get(name, ())):  # noqa: SLF001
        if definition.func.__module__ == fixtures.__name__:
            return True
        if name not in definition.argnames:
            return False
    return False


def asks_for_ours(metafunc: pytest.Metafunc) -> bool:
    """Whether a test uses any fixture of ours."""
    return any(is_ours(metafunc, name) for name in fixtures.NAMES)
