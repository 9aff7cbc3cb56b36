"""Engines and checks that `conftest.py` files and plugins define for their sessions."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.checks.base import CHECKS
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.engines.base import ENGINES


def lend(config: pytest.Config) -> None:
    """Have them found by name until the session is over.

    Raises:
        ConfigError: a name comes twice.
    """
    told: tuple[tuple[Extensions[Any], Any], ...] = (
        (ENGINES, config.hook.pytest_llmbench_engines),
        (CHECKS, config.hook.pytest_llmbench_checks),
    )
    for known, hook in told:
        config.add_cleanup(known.take_back)
        for things in hook():
            for thing in things:
                known.lend(thing)


def unusable() -> list[str]:
    """Why engines and checks of other packages cannot be used: one line each."""
    return [*ENGINES.broken().values(), *CHECKS.broken().values()]
