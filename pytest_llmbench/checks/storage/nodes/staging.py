"""View of a node on data: existing and readable paths, and their content. Standard library alone."""

import glob
import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_llmbench.workloads.node.files import wrong_with
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog


def look(context: RankContext, log: ProbeLog) -> dict[str, Any]:
    """Answer with what is at each path.

    The config: `paths`, each with `path` (a file, a folder or a pattern), `count` and `min_bytes` as `files.wrong_with`
    has them; `most`, how many files of each are listed.
    """
    found = {}
    for asked in context.config["paths"]:
        log.phase(f"look at {asked['path']}")
        wrong = wrong_with(asked["path"], asked["count"], asked["min_bytes"])
        found[asked["path"]] = {"wrong": wrong, **listing(asked["path"], context.config["most"])}
    return {"paths": found}


def listing(pattern: str, most: int) -> dict[str, Any]:
    """List files by name and size, in an order that is the same on every node.

    Returns:
        `files` and their `bytes`, of at most `most`; whether that was all (`whole`); `digest`: SHA-256 of the list.
    """
    found = list(islice(_files(pattern), most + 1))
    listed = found[:most]
    text = "".join(f"{name}\t{size}\n" for name, size in listed)
    return {
        "files": len(listed),
        "bytes": sum(size for _, size in listed if size is not None),
        "whole": len(found) <= most,
        "digest": hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest(),
    }


def _files(pattern: str) -> Iterator[tuple[str, int | None]]:
    """Files and their sizes, in order of their names; None for one that cannot be asked, such as a broken link."""
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
