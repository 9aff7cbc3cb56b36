"""Conversion of our errors about the user's input into pytest's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_llmbench.core.errors import ConfigError


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Mistakes of the user are usage errors, with their message and without a traceback."""
    try:
        yield
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
