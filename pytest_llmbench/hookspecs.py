"""Hooks for a `conftest.py` or a plugin: what a site defines for its own sessions, without a package of its own.

A package announces its engines and checks in its entry points instead, where every session finds them.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.checks.base import Check
from pytest_llmbench.engines.base import Engine


def pytest_llmbench_engines() -> Iterable[Engine]:  # type: ignore[empty-body]  # a specification
    """Return engines that recipes may name. Called once, after the `conftest.py` files of the rootdir are read."""


def pytest_llmbench_checks() -> Iterable[Check]:  # type: ignore[empty-body]  # a specification
    """Return checks that test nodes. Called once, after the `conftest.py` files of the rootdir are read."""
