"""Definitions of `conftest.py` files and plugins for their sessions, and the unusable ones of other packages."""

from typing import Any

import pytest

from pytest_llmbench.checks.base import CHECKS
from pytest_llmbench.cluster.recipes import RECIPES
from pytest_llmbench.cluster.system import SYSTEMS
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.judging.statistics import SHARED
from pytest_llmbench.readers.log import READERS
from pytest_llmbench.reporting.base import REPORTS


def lend(config: pytest.Config) -> None:
    """Let the engines and checks of `conftest.py` files be found by name until the session is over.

    Raises ConfigError for a name that comes twice.
    """
    hooks: tuple[tuple[Extensions[Any], Any], ...] = (
        (ENGINES, config.hook.pytest_llmbench_engines),
        (CHECKS, config.hook.pytest_llmbench_checks),
    )
    for known, hook in hooks:
        config.add_cleanup(known.take_back)
        for things in hook():
            for thing in things:
                known.lend(thing)


def unusable() -> list[str]:
    """The reasons why extensions of other packages are unusable: one line each."""
    kinds: tuple[Extensions[Any], ...] = (ENGINES, CHECKS, READERS, SHARED, RECIPES, SYSTEMS, REPORTS)
    return [reason for extensions in kinds for reason in extensions.broken().values()]
