"""A shared file system under the load of all nodes at once: writes, reads of a neighbour's files, and metadata."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from pytest_llmbench.checks.storage.nodes.storage_streams import BLOCK, Stream, read, write
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.file_barrier import FileBarrier
from pytest_llmbench.workloads.rank.probe import ProbeLog

_SPARE = 1.1
# Another rank has as many chances to come in between.
_TRIES = 100


class StorageLoad(ProbeAnswer):
    """The load of one node, while all others had the same."""

    bytes: PositiveInt
    """Written, and read."""
    write_s: PositiveFloat
    """Seconds for that."""
    read_s: PositiveFloat
    """Seconds for that."""
    direct: bool
    """Whether all of it went past the page cache."""
    wrong: tuple[str, ...]
    """Differences between written and read bytes, in words."""
    read_from: NonNegativeInt
    """The rank whose files this node read."""
    files: PositiveInt
    """Small files."""
    create_s: PositiveFloat
    """Seconds for making, looking up and removing them."""
    stat_s: PositiveFloat
    """Seconds for making, looking up and removing them."""
    unlink_s: PositiveFloat
    """Seconds for making, looking up and removing them."""


def measure(context: RankContext, log: ProbeLog) -> StorageLoad:
    """Answer with how fast this node wrote, read and handled small files while all others did the same.

    One rank per node. The config: `folder`, shared by all nodes; `blocks` of 4 MiB in each of a node's `streams` files;
    small `files` of each node; `timeout_s`, how long to wait for the other nodes at each point.

    Raises:
        RunError: `no_space`, before anything is written; `short_read`; `left_alone`, when another node failed.
        OSError: the file system refuses.
    """
    config, rank = context.config, context.rank
    parent = Path(config["folder"]) / f"llmbench-storage-{config['name']}"
    neighbour = (rank + 1) % context.world_size

    def streams(of: int) -> list[Stream]:
        count: int = config["streams"]
        return [
            Stream(path=parent / f"node-{of:05d}" / f"data-{i}", seed=of * count + i, blocks=config["blocks"])
            for i in range(count)
        ]

    ranks = range(context.world_size)
    with (
        FileBarrier(context.folder / layout.MEETING, rank, ranks, config["timeout_s"]) as barrier,
        _folder(parent, parent / f"node-{rank:05d}") as own,
    ):

        def step(what: str) -> None:
            log.phase(what)
            barrier.wait(what)

        _check_space(own, config["streams"] * config["blocks"] * BLOCK * context.world_size)
        own_files, others_files = streams(rank), streams(neighbour)
        step("write")
        written = _at_once(write, own_files)
        step("read")
        read_back = _at_once(read, others_files)
        answer = StorageLoad(
            bytes=config["streams"] * config["blocks"] * BLOCK,
            write_s=_span(written),
            read_s=_span(read_back),
            direct=all(each["direct"] for each in (*written, *read_back)),
            wrong=tuple(each["wrong"] for each in read_back if each["wrong"]),
            read_from=neighbour,
            files=config["files"],
            **_metadata(own, parent / f"node-{neighbour:05d}", config["files"], step),
        )
        step("clean up")  # only now has the neighbour read this node's files
    return answer


@contextmanager
def _folder(parent: Path, own: Path) -> Iterator[Path]:
    """This rank's folder, gone after the `with` block, whatever happens in it; the last one takes the parent along."""
    _make(own)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):
            parent.rmdir()


def _make(own: Path) -> None:
    """Make a folder and its parent, which another rank may take along in between, because it is still empty."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            own.mkdir(parents=True)
            return
    own.mkdir(parents=True)


def _check_space(folder: Path, needed: int) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < _SPARE * needed:
        raise RunError(
            "no_space",  #: error no_space: Check: too little is free on the file system that is to be measured
            f"{folder} has {free / 1e9:.3g} GB free, and all nodes together need {_SPARE * needed / 1e9:.3g} GB: "
            "nothing was written; make space, or set a smaller size",
        )


def _at_once(do: Callable[[Stream], dict[str, Any]], streams: list[Stream]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(do, streams))


def _span(streams: list[dict[str, Any]]) -> float:
    began, ended = ([float(each[when]) for each in streams] for when in ("began", "ended"))
    return max(ended) - min(began)


def _metadata(own: Path, other: Path, count: int, step: Callable[[str], None]) -> dict[str, float]:
    """Seconds for creating files, for asking about the neighbour's, in no cache here, and for removing them."""
    names = [f"small-{number:06d}" for number in range(count)]
    found = {}
    for what, do, folder in (("create", _create, own), ("stat", os.stat, other), ("unlink", os.unlink, own)):
        paths = [f"{folder}/{name}" for name in names]
        step(what)
        began = time.perf_counter()
        for path in paths:
            do(path)
        found[f"{what}_s"] = time.perf_counter() - began
    return found


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
