"""Files that one process writes while others read them."""

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.wire import layout

# Of files that a job executes or that may hold what others must not see.
PRIVATE = 0o600
_LARGEST = 512 << 20
# Scripts, pickles and tasks of jobs, which may have what their environment has.
_EXECUTED = ("*.sh", "*.sbatch", "*.pkl", layout.TASK, layout.COMMAND)
# Owner of the files of root, as a container or NFS shows them that does not know the real one.
_UNMAPPED_UID = 65534


def make_folder(path: Path) -> None:
    """Create a folder, and those above it that are missing, for this user alone whatever the umask is.

    Jobs execute what lies in the folders of a session: other users may not put anything there.
    """
    for folder in reversed([path, *path.parents]):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def refuse_shared(folder: Path) -> None:
    """Refuse a folder in which another user could replace a file that jobs execute, such as a script.

    Raises ConfigError if another user owns it or a folder above it, or may rename files in it.
    """
    places = {place for path in (folder.absolute(), folder.resolve()) for place in (path, *path.parents)}
    for path in sorted(places):
        with contextlib.suppress(FileNotFoundError):  # it will be made for this user alone
            if reason := _shared(status := path.lstat()):
                kept = f"; or keep users from renaming each other's files there: chmod +t {path}"
                sticky = kept if status.st_uid in {os.getuid(), 0} else ""
                raise ConfigError(
                    f"{folder}: {path} {reason}, who could replace the files that jobs execute; give a "
                    f"--llmbench-run-dir in a folder that is yours, such as ~/reports{sticky}"
                )


def _shared(status: os.stat_result) -> str:
    """The other users, but for root, who can change what is in a folder; empty if there are none."""
    if status.st_uid not in {os.getuid(), 0, _UNMAPPED_UID}:
        return f"belongs to user {_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:  # there, everybody renames only his own
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"can be written by group {_name(status.st_gid, of_group=True)}"
    return ""


def _is_own_group(gid: int) -> bool:
    """True if a group is of this user or root alone; the group of a user's own name is, by custom."""
    try:
        group, me = grp.getgrgid(gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name in {me, "root"} and not set(group.gr_mem) - {me, "root"}


def _name(number: int, *, of_group: bool = False) -> str:
    try:
        return grp.getgrgid(number).gr_name if of_group else pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def make_private(folder: Path) -> None:
    """Take the rights of other users off the files of a folder: a job executes some of them."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is renamed or taken away just now
            if not path.is_symlink() and path.is_file():
                path.chmod(PRIVATE)


def share(folder: Path, group: str) -> None:
    """Let the members of a group read a session's folder, and list the one above it if that was made for this user.

    Scripts and pickles of jobs stay private, with the environment in them. Raises ConfigError as `find_group` does, and
    OSError if a mode cannot be changed.
    """
    number, above = find_group(group), folder.absolute().parent
    made = above.stat().st_mode & 0o077 == 0 and above != Path.home()
    for path in (*([above] if made else ()), folder, *folder.rglob("*")):
        executed = any(path.match(pattern) for pattern in _EXECUTED)
        with contextlib.suppress(FileNotFoundError):  # it is renamed or taken away just now
            if not path.is_symlink() and not executed and path.stat().st_uid == os.getuid():
                os.chown(path, -1, number)
                path.chmod(0o750 if path.is_dir() else 0o640)


def find_group(name: str) -> int:
    """Return the number of a group; raises ConfigError if it is unknown, or this user cannot give files to it."""
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"group {name!r} of the system is unknown on this machine: name a group of yours") from None
    if os.getuid() != 0 and number not in {os.getegid(), *os.getgroups()}:
        raise ConfigError(f"group {name!r} of the system: {_name(os.getuid())} is not a member: name a group of yours")
    return number


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; the open of a FIFO would wait for ever.

    Raises OSError if it is a FIFO, a device or a socket, or opening it fails.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file, but a FIFO, a device or a socket", str(path))
    return os.fdopen(file, "rb")


def refuse_special_files(folder: Path) -> None:
    """Refuse a folder of others that has a FIFO, a device, a socket, or a link to one in it.

    Raises ConfigError if there is one.
    """
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(OSError):  # a link that leads nowhere
                if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
                    raise ConfigError(f"{path} is not a regular file (a FIFO, a device or a socket): remove it")


def read_text(path: Path) -> str | None:
    """The text of a small file without the space around it, such as one of the kernel; None if it is unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_regular(path: Path) -> bytes:
    """Read a file of a session, whole. Raises OSError: it is a FIFO or a device, or larger than 512 MiB."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise OSError(errno.EFBIG, f"larger than {_LARGEST >> 20} MiB", str(path))
        return file.read()


def read_at_most(path: Path, most: int, hint: str = "") -> bytes:
    """Read a file that others may have written, whole.

    Raises ConfigError if it is larger than `most` bytes or unreadable, then with `hint` at the end of the message.
    """
    try:
        with open_regular(path) as file:
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
    """Replace a file's content likewise, part by part."""
    make_folder(path.parent)
    with replacing(path, mode=mode) as new, new.open("w", encoding="utf-8", errors="surrogateescape") as file:
        for part in parts:
            file.write(part)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = False) -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `path` in one step; an error leaves the old one as it is.

    Args:
        path: the file; its folder is there.
        mode: permissions of the new file, which is then there already; None for those of the old one, or by the umask.
        durable: whether the old or the new file is there, whole, after a loss of power; it costs a wait for the disk.
    """
    new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        if mode is not None:  # the content may be private from its first byte on
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield new
        if mode is not None or path.exists():
            new.chmod(stat.S_IMODE(path.stat().st_mode) if mode is None else mode)
        if durable:
            with new.open("rb") as file:
                os.fsync(file)
        new.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write to a full disk names none
        raise
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
