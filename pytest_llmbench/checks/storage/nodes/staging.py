"""View of a node on data: existing and readable paths, and their content."""

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import NonNegativeInt

from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.files import wrong_with
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog


class StagedFiles(ProbeAnswer):
    """The files of a path, and the reason why they cannot be used; empty if they can."""

    wrong: str
    files: NonNegativeInt
    bytes: NonNegativeInt
    whole: bool  # whether these are all
    digest: str  # SHA-256 of their names and sizes


class StagedData(ProbeAnswer):
    """The files of each path of the probe's config."""

    paths: Mapping[str, StagedFiles]


def look(context: RankContext, log: ProbeLog) -> StagedData:
    """Look at each path.

    The config: `paths`, each with `path` (a file, a folder or a pattern), `count` and `min_bytes` as `files.wrong_with`
    has them; `most`, how many files of each are listed.
    """
    paths = {}
    for asked in context.config["paths"]:
        path = asked["path"]
        log.phase(f"look at {path}")
        wrong = wrong_with(path, asked["count"], asked["min_bytes"])
        paths[path] = listing(path, context.config["most"], wrong)
    return StagedData(paths=paths)


def listing(pattern: str, most: int, wrong: str = "") -> StagedFiles:
    """List up to `most` files by name and size, in an order that is the same on every node."""
    files = list(islice(_walk(pattern), most + 1))
    listed = files[:most]
    text = "".join(f"{name}\t{size}\n" for name, size in listed)
    return StagedFiles(
        wrong=wrong,
        files=len(listed),
        bytes=sum(size for _, size in listed if size is not None),
        whole=len(files) <= most,
        digest=hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest(),
    )


def _walk(pattern: str) -> Iterator[tuple[str, int | None]]:
    """Files and their sizes, in order of their names; None for one without a size, such as a broken link."""
    for path in [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207
        if not Path(path).is_dir():
            yield path, _size(path)
        for parent, folders, names in os.walk(path):
            folders.sort()
            yield from ((file, _size(file)) for file in (f"{parent}/{name}" for name in sorted(names)))


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None
