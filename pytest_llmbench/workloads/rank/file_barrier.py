"""A barrier by files in a shared folder, for ranks without a process group."""

import os
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.wire import layout

_LOOK_S = 0.02
_LEFT = "left"


class FileBarrier:
    """A barrier of some ranks, for any number of waits of at most `timeout_s` each.

    The folder belongs to these ranks alone, on a file system that all of them share. A rank that raises inside the
    `with` block leaves a mark, so that the others stop waiting for it. The ranks pass the barrier within a fraction of
    a second of each other, which is short compared with seconds of measurement.
    """

    def __init__(self, folder: Path, rank: int, ranks: Collection[int], timeout_s: float) -> None:
        self._folder = folder
        self._rank = rank
        self._names = {layout.rank_name(number) for number in ranks}
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self._sign(self._folder / _LEFT)

    def wait(self, what: str) -> None:
        """Wait until every rank has reached this point, which has a name of its own.

        Raises RunError `left_alone` if a rank raised or is missing after `timeout_s`.
        """
        place, deadline = self._folder / what, time.monotonic() + self._timeout_s
        self._sign(place)
        while missing := self._names - _ranks_at(place):
            # A rank that failed after it came here counts as present.
            if gone := missing & _ranks_at(self._folder / _LEFT):
                raise RunError("left_alone", f"{_name_ranks(gone)} failed, and was waited for at `{what}`")
            if time.monotonic() > deadline:  #: error left_alone: Check: another rank failed, or did not come in time
                raise RunError(
                    "left_alone", f"{_name_ranks(missing)} did not come to `{what}` within {self._timeout_s:g} s"
                )
            time.sleep(_LOOK_S)

    def _sign(self, place: Path) -> None:
        make_folder(place)
        (place / layout.rank_name(self._rank)).touch()


def _ranks_at(place: Path) -> set[str]:
    """List the ranks at a place. Opening the folder makes an NFS client refresh it."""
    try:
        return set(os.listdir(place))  # noqa: PTH208 - names are all that counts
    except FileNotFoundError:
        return set()


def _name_ranks(names: set[str]) -> str:
    return ", ".join(sorted(names)).replace("-", " ")
