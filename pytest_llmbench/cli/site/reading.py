"""The folder in which a command runs, as pytest reads it: ini file, `conftest.py`, recipes and systems."""

import contextlib
import io
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import lending

T = TypeVar("T")


def call_in_site(work: Callable[[pytest.Config], T]) -> T:
    """Call `work` with pytest's configuration for this folder, before any collection.

    Raises ConfigError if pytest refuses the folder's ini file or a `conftest.py`.
    """
    site = _Site(work)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        # Its rewriting of assertions warns of each module that was imported before it, such as this one.
        pytest.main(["--assert=plain"], plugins=[site])
    if site.error is not None:
        raise site.error
    if not site.results:
        raise ConfigError(f"pytest cannot be configured here: {output.getvalue().strip().removeprefix('ERROR: ')}")
    return site.results[0]


class _Site(Generic[T]):
    """A plugin that calls `work` instead of running a session."""

    def __init__(self, work: Callable[[pytest.Config], T]) -> None:
        self.results: list[T] = []
        self.error: ConfigError | None = None
        self._work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Do the work."""
        try:
            lending.lend(config)
            self.results.append(self._work(config))
        except ConfigError as error:
            self.error = error
        return 0
