"""Files that one process writes while others read them."""

import contextlib
import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.core.errors import ConfigError

# Of files that a job executes or that may hold what others must not see.
PRIVATE = 0o600
# Owner of the files of root, as a container or NFS shows them that does not know the real one.
_UNMAPPED_UID = 65534


def make_folder(path: Path) -> None:
    """Create a folder, and those above it that are missing, for this user alone whatever the umask is.

    Jobs execute what lies in the folders of a session: other users may not put anything there.
    """
    for each in reversed([path, *path.parents]):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def refuse_shared(folder: Path) -> None:
    """Refuse a folder in which another user could replace a file that jobs execute, such as a script.

    Raises:
        ConfigError: someone else owns it or a folder above it, or may rename what is in there.
    """
    places = {each for path in (folder.absolute(), folder.resolve()) for each in (path, *path.parents)}
    for path in sorted(places):
        with contextlib.suppress(FileNotFoundError):  # it will be made for this user alone
            if why := _shared(path.lstat()):
                raise ConfigError(
                    f"{folder}: {path} {why}, who could replace the files that jobs execute; give a --run-dir in a "
                    "folder that is yours, such as ~/reports"
                )


def _shared(found: os.stat_result) -> str:
    """Say which other user than root can change what is in a folder; empty without one."""
    if found.st_uid not in {os.getuid(), 0, _UNMAPPED_UID}:
        return f"belongs to user {_name(found.st_uid)}"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:  # there, everybody renames only his own
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f"can be written by a group, {found.st_gid}"
    return ""


def _is_own_group(gid: int) -> bool:
    """Whether a group is of this user or root alone; the group of a user's own name is, by custom."""
    try:
        group, me = grp.getgrgid(gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name in {me, "root"} and not set(group.gr_mem) - {me, "root"}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_private(folder: Path) -> None:
    """Keep the files of a folder that others made to this user: a job executes some of them."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is renamed or taken away just now
            if not path.is_symlink() and path.is_file():
                path.chmod(PRIVATE)


def read_at_most(path: Path, most: int, hint: str = "") -> bytes:
    """Read a file that others may have written, whole.

    Args:
        path: the file.
        most: its largest size, bytes.
        hint: the end of the message if it cannot be read.

    Raises:
        ConfigError: it cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{hint}") from error
    if len(content) > most:
        raise ConfigError(f"{path}: is larger than {most} bytes")
    return content


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file's content in one step, creating its folder: readers see the old file or the new one, whole."""
    write_parts(path, (text,), mode=mode)


def write_parts(path: Path, parts: Iterable[str], *, mode: int = 0o644) -> None:
    """Replace a file's content likewise, by parts that need not be in memory together."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for part in parts:
                file.write(part)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
