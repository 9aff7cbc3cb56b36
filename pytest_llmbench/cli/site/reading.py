"""The folder in which a command runs, as pytest reads it: ini file, `conftest.py`, recipes and systems."""

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.plugin import lending

T = TypeVar("T")


def in_site(work: Callable[[pytest.Config], T], words: Sequence[str] = ()) -> T:
    """Call `work` with the configuration that pytest makes of this folder and these words; no test is collected.

    Raises:
        ConfigError: pytest refuses the folder's ini file, a `conftest.py`, or the words.
    """
    site = _Site(work)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        # Its rewriting of assertions warns of each module that was imported before it, such as this one.
        pytest.main([*words, "--assert=plain"], plugins=[site])
    if site.error is not None:
        raise site.error
    if not site.results:
        raise ConfigError(f"pytest cannot be configured here: {output.getvalue().strip().removeprefix('ERROR: ')}")
    return site.results[0]


class _Site(Generic[T]):
    """Takes the place of the session, once pytest is configured."""

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
