"""Where our errors about the user's input become pytest's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_llmbench.core.errors import ConfigError


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """What the user got wrong is a usage error, with its message and no traceback."""
    try:
        yield
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
