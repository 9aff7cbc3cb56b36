"""Makes NCCL print its transport in this process, and collects the lines.

NCCL reads its variables once, so this comes before the first process group, in a process of its own: lines
about each call cost time.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.answers import NcclLines
from pytest_llmbench.readers.nccl import condense
from pytest_llmbench.workloads.node.hardware import bind_far, read_path
from pytest_llmbench.workloads.rank.context import RankContext

PRINTED = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,SHM,GRAPH,ENV,TUNING",
}
# A rank has some peers, and a way or two to each.
_MOST_LINES = 200
_MOST_BYTES = 1 << 20
_LONGEST = 200


class NcclRecord:
    """NCCL's lines of this process from now on, in a file. Those of the first node stay in the run's folder."""

    def __init__(self, context: RankContext) -> None:
        self._context, self._variables = context, steering(os.environ)
        if context.simulate is not None and context.simulate.name == "far-cores":
            bind_far(context)
        self._stays = context.rank < context.ranks_per_node
        name = f"{layout.rank_name(context.rank)}.log"
        folder = context.folder / layout.NCCL if self._stays else Path(tempfile.mkdtemp(prefix="llmbench-nccl-"))
        make_folder(folder)
        self._path = folder / name
        os.environ.update(PRINTED, NCCL_DEBUG_FILE=str(self._path))

    def read(self) -> NcclLines:
        """The lines so far; the file is cut to 1 MiB, or removed."""
        lines: list[str] = []
        with suppress(OSError):
            with self._path.open(encoding="utf-8", errors="replace") as file:
                # A last line without its end is still being written.
                lines = condense((line for line in file if line.endswith("\n")), _MOST_LINES)
            if self._stays and self._path.stat().st_size > _MOST_BYTES:
                os.truncate(self._path, _MOST_BYTES)
            elif not self._stays:
                self._path.unlink()
                self._path.parent.rmdir()
        cores = tuple(sorted(os.sched_getaffinity(0)))
        far = read_path(self._context).far
        return NcclLines(lines=tuple(lines), variables=self._variables, cores=cores, far=far)


def steering(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of NCCL, those of its output left out."""
    return {
        name: "".join(filter(str.isprintable, value))[:_LONGEST]
        for name, value in environ.items()
        if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
    }


def read_output(text: Iterable[str], environ: Mapping[str, str]) -> NcclLines:
    """The lines in the output of a program that runs all ranks."""
    return NcclLines(lines=tuple(condense(text, 10 * _MOST_LINES)), variables=steering(environ))
