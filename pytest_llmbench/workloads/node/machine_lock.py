"""Keeps two sessions from measuring on one machine at once, by a lock of every process that loads it.

A killed session leaves ranks behind until they notice its silence. A measurement at the same time would get half a
machine, so the ranks hold the lock, too. It is a shared `flock`, which the kernel releases when the last process that
holds it has ended in any way.
"""

import errno
import fcntl
import os
import stat
from pathlib import Path

# Closing any of these would release the lock; they stay open until the process ends.
_held: list[int] = []


def hold(path: Path | None) -> tuple[int, ...]:
    """Hold a machine's lock, shared with other processes, until this process ends; empty if `path` is None.

    Programs that may outlive this process get the returned descriptor, so that the lock is held until they end as well.
    """
    if path is None:
        return ()
    lock = _open(path)
    fcntl.flock(lock, fcntl.LOCK_SH)
    _held.append(lock)
    return (lock,)


def take(path: Path) -> int | None:
    """Hold a machine's lock exclusively; return the descriptor that holds it, or None if another process has it.

    Raises OSError if opening the file fails.
    """
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def is_held(path: Path) -> bool:
    """Return whether any process holds a machine's lock. Raises OSError if opening the file fails."""
    lock = take(path)
    if lock is None:
        return True
    os.close(lock)
    return False


def holders(path: Path) -> tuple[int, ...]:
    """Return the ids of the processes that hold a lock, as far as the kernel lists them, for messages."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        inode = f"{path.stat().st_ino}"
    except OSError:
        return ()
    # `1: FLOCK  ADVISORY  READ 4711 08:01:131 0 EOF`; a process that waits has an arrow after the number.
    rows = [line.split() for line in lines if "->" not in line]
    return tuple(int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode)


def _open(path: Path) -> int:
    """Open a lock's file, which may belong to another user, as reading is enough for a `flock`.

    Opening and creating are separate calls, as in /tmp the kernel refuses O_CREAT for the file of another user.
    """
    while True:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(lock).st_mode):
                return lock
            os.close(lock)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        except FileNotFoundError:
            pass
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue  # another process was quicker
        os.fchmod(lock, 0o644)  # under any umask, as sessions of all users wait for each other
        return lock
