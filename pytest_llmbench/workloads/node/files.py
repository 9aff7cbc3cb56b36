"""Finds faults of required files. It needs Python 3.8 or later alone.

`prepared` also runs the source of this module as a program, with interpreters of other environments.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_NAMED = 3
# Number of folders that are searched for an unreadable one after too few files were found.
_LOOKED_THROUGH = 1000


def wrong_with(pattern: str, count: int | None = None, min_bytes: int | None = None) -> str:
    """Describe the faults of a file, a folder, or all matches of a glob pattern; empty if all are as they should be.

    Args:
        pattern: `**` matches any folders, without following links; hidden files match only a pattern that begins with
            a dot.
        count: least number of matches; one by default.
        min_bytes: least size of each match, of a folder that of the files in it; above 0 by default.
    """
    try:
        paths = _matches(pattern)
    except (OSError, ValueError, NotImplementedError) as error:
        return _words(pattern, error)
    wanted = count or 1
    problems = []
    if len(paths) < wanted:
        problems.append(f"{len(paths)} of {wanted} {'file' if wanted == 1 else 'files'} found for {pattern}")
        problems += islice(_unreadable(pattern), _NAMED)
    wrong = [words for path in paths if (words := _wrong_with_one(path, min_bytes))]
    problems += wrong[:_NAMED]
    if len(wrong) > _NAMED:
        problems.append(f"and {len(wrong) - _NAMED} more of {len(paths)} like these")
    return "; ".join(problems)


def _matches(pattern: str) -> list[str]:
    folder, rest = _split(pattern)
    if rest is None:
        return [pattern]
    os.scandir(folder).close()  # raises for an unreadable folder, which `glob` would treat as an empty one
    hidden = Path(rest).name.startswith(".")
    return [str(path) for path in sorted(folder.glob(rest)) if hidden or not path.name.startswith(".")]


def _split(pattern: str) -> tuple[Path, str | None]:
    path = Path(pattern)
    if os.path.lexists(pattern):
        return path, None
    for number, part in enumerate(path.parts):
        if re.search(r"[*?[]", part):
            return Path(*path.parts[:number]), str(Path(*path.parts[number:]))
    return path, None


def _unreadable(pattern: str) -> Iterator[str]:
    errors: list[OSError] = []
    for _ in islice(os.walk(_split(pattern)[0], onerror=errors.append), _LOOKED_THROUGH):
        pass
    return (_words(error.filename, error) for error in errors)


def _wrong_with_one(path: str, min_bytes: int | None) -> str:
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                if next(entries, None) is None:
                    return f"{path} is an empty folder"
            size = _size_within(path, min_bytes or 0)
        elif stat.S_ISREG(status.st_mode):
            Path(path).open("rb").close()
            size = status.st_size
            if size == 0:
                return f"{path} is empty (0 bytes)"
        else:
            return ""
    except OSError as error:
        return _words(path, error)
    if min_bytes is not None and size < min_bytes:
        return f"{path} has {size:,} bytes, {min_bytes - size:,} fewer than the {min_bytes:,} it must have at least"
    return ""


def _size_within(folder: str, enough: int) -> int:
    """Sum the bytes of the files in a folder, up to `enough`."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if total >= enough:
                return total
            try:
                total += Path(parent, name).stat().st_size
            except OSError:
                continue  # a broken link counts as 0 bytes
    return total


def _words(path: str, error: Exception) -> str:
    number = getattr(error, "errno", None)
    path = getattr(error, "filename", None) or path
    if number == errno.ELOOP:
        return f"{path} is reached by symbolic links that lead in a circle"
    if number == errno.ENOENT:
        return f"{path} {_where_it_ends(path)}"
    if number in {errno.EACCES, errno.EPERM}:
        return f"{path} cannot be read by user {os.geteuid()} of {os.uname().nodename}: permission denied"
    return f"{path}: {getattr(error, 'strerror', None) or error}"


def _where_it_ends(path: str) -> str:
    if Path(path).is_symlink():
        return f"is a link to {os.readlink(path)}, which is not there"  # noqa: PTH115 - Path has it from 3.9 on
    there = next((parent for parent in Path(path).parents if parent.exists()), None)
    return f"is not there (the nearest folder that is: {there})"
