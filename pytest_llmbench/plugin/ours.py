"""Recognises tests, folders and processes of ours before a session begins."""

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.pytest_private import fixture_definitions

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
FIXTURES = ("health", "run", "reference")
_SESSION = re.compile(r"\d{8}-\d{6}-")
BEGUN = pytest.StashKey[bool]()


def is_session_folder(path: Path) -> bool:
    """True if a folder has the results of a session of ours: pytest would look for tests in each run's folder."""
    return (path.name == layout.LATEST or bool(_SESSION.match(path.name))) and (path / layout.JOURNAL).is_file()


class FeasibilityWarning(pytest.PytestWarning):
    """A threshold exceeds the share of the published peak that can be reached."""


def keep_warning(config: pytest.Config) -> None:
    """Keep the warning from becoming an error by an ini file whose filter is meant for code.

    The line comes after those of the ini file and before `-W` on the command line, which is obeyed.
    """
    config.addinivalue_line("filterwarnings", f"default::{__name__}.{FeasibilityWarning.__name__}")


def is_of_ours(thing: object) -> bool:
    """True if this package made the type of a thing."""
    package = __name__.partition(".")[0]
    return any(str(kind.__module__).partition(".")[0] == package for kind in type(thing).__mro__)


def send_session(node: Any, session: str, folder: Path) -> None:
    """Send a worker of xdist the id and folder of its session, as plain text, which is all that crosses."""
    node.workerinput[WORKER_INPUT] = {"id": session, "folder": str(folder)}


def is_worker(config: pytest.Config) -> bool:
    """True if this process is an xdist worker."""
    return hasattr(config, "workerinput")


def is_distributed(config: pytest.Config) -> bool:
    """True if this process is an xdist controller."""
    return not is_worker(config) and config.getoption("dist", "no") != "no" and not config.option.collectonly


def is_begun(config: pytest.Config) -> bool:
    """True if the session of ours has begun."""
    return config.stash.get(BEGUN, False)


def is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """True if a test uses our fixture of that name: as it is, or through one that overrides it and asks for it.

    `run` and `reference` are words that other people's fixtures and parameters have for names, too.
    """
    if name not in metafunc.fixturenames:
        return False
    for definition in reversed(fixture_definitions(metafunc, name)):
        if definition.func.__module__ == f"{__package__}.fixtures":
            return True
        if name not in definition.argnames:
            return False
    return False
