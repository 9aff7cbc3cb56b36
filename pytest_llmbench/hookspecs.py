"""Hooks for a `conftest.py` or a plugin: what a site defines for its own sessions, without a package of its own.

A package names its engines, checks and reports in its entry points instead, where every session finds them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every session of pytest reads this file
    from pytest_llmbench.checks.base import Check
    from pytest_llmbench.engines.base import Engine
    from pytest_llmbench.reporting.base import FinishedSession


def pytest_llmbench_engines() -> "Iterable[Engine]":  # type: ignore[empty-body]  # a specification
    """Return engines that recipes may name. Called once, after the `conftest.py` files of the rootdir are read."""


def pytest_llmbench_checks() -> "Iterable[Check]":  # type: ignore[empty-body]  # a specification
    """Return checks that test nodes. Called once, after the `conftest.py` files of the rootdir are read."""


def pytest_llmbench_session_report(session: "FinishedSession", config: pytest.Config) -> Iterable[str] | None:
    """Report a session after its last verdict, in files of your own or in lines for the terminal, which you return.

    Called where runs or checks were made, in the process that owns them. An exception is shown, changes no verdict, and
    makes the exit code that of an internal error.
    """
