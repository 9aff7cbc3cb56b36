"""The folder in which a command runs, as pytest reads it: ini file, `conftest.py`, recipes and systems."""

import contextlib
import io
from collections.abc import Callable
from typing import TypeVar

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import lending

T = TypeVar("T")


def call_in_site(work: Callable[[pytest.Config], T]) -> T:
    """Call `work` with pytest's configuration for this folder, before any collection.

    Raises ConfigError if pytest refuses the folder's ini file or a `conftest.py`.
    """
    results: list[T] = []
    errors: list[ConfigError] = []

    class Caller:
        """A plugin that calls `work` instead of running a session."""

        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config: pytest.Config) -> int:
            try:
                lending.lend(config)
                results.append(work(config))
            except ConfigError as error:
                errors.append(error)
            return 0

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        # Its rewriting of assertions warns of each module that was imported before it, such as this one.
        pytest.main(["--assert=plain"], plugins=[Caller()])
    if not (results or errors):
        errors = [ConfigError(f"pytest cannot be configured here: {output.getvalue().strip().removeprefix('ERROR: ')}")]
    if errors:
        raise errors[0]
    return results[0]
