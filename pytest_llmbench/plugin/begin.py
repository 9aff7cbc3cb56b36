"""Begins a session of ours, as late as possible.

Most sessions of pytest are without tests of ours, and the modules that make a session take a second to import. So the
session begins while pytest is configured only where the user gave an option of ours, and otherwise with the first test
of ours that is collected.
"""

import importlib
from functools import partial

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.early import Early, EarlyController
from pytest_llmbench.plugin.ours import BEGUN, is_begun, is_distributed, is_worker

_HOOKS = ("pytest_llmbench_engines", "pytest_llmbench_checks")
_CONTROLLER = "llmbench-early"
_EARLY = pytest.StashKey[Early | None]()


def begin_or_wait(config: pytest.Config) -> None:
    """Begin now if the user gave any option of ours; else with the first test of ours."""
    early = config.stash[_EARLY] = None if is_worker(config) else Early(config)
    hooks = (getattr(config.hook, name).get_hookimpls() for name in _HOOKS)
    if options.is_given(config) or config.getini("llmbench_require") or any(hooks):
        with options.usage_errors():
            begin(config, lends=True)
        return
    if early is not None and is_distributed(config):
        config.pluginmanager.register(EarlyController(early, partial(begin, config)), _CONTROLLER)
    if config.pluginmanager.hasplugin("pytester"):
        # It runs sessions in this process, and after each has Python forget the modules that the session imported
        # first: the next would import them again, and find classes of both.
        importlib.import_module("pytest_llmbench.plugin.register")


def begin(config: pytest.Config, *, lends: bool = False) -> None:
    """Begin the session, unless it has begun.

    With `lends`, conftest files and plugins bring engines and checks. Later on, conftest files of the rootdir lack such
    hooks, and those of other folders are left out.

    Raises ConfigError for an illegal value in the ini file, and for a Python that leaves out assertions.
    """
    if is_begun(config):
        return
    if not __debug__:  # pytest rewrites those of test files, but not those of their helpers
        raise ConfigError("python -O and PYTHONOPTIMIZE drop `assert`: leave them out")
    config.stash[options.KEY] = options.read_options(config)
    from pytest_llmbench.plugin.register import register  # noqa: PLC0415  # this is the second that is saved

    config.stash[BEGUN] = True
    register(config, config.stash[_EARLY], config.pluginmanager.unregister(name=_CONTROLLER), lends=lends)
