"""Two sessions must not measure on one machine at once: every process that loads it holds a lock as long as it lives.

A session that was killed leaves ranks behind for as long as its owner may be silent. A measurement at the same time
would get half a machine, so the lock belongs to the ranks and not to the session alone. It is a shared `flock`: the
kernel gives it back when the last process that holds it has ended, however it ended.
"""

import fcntl
import os
from pathlib import Path

# Closing any of these would give the lock back; they stay open until the process ends.
_held: list[int] = []


def hold(path: Path | None) -> tuple[int, ...]:
    """Hold a machine's lock, with all others that hold it, until this process ends; nothing is held without a path.

    The descriptor is for programs that this process starts and that may outlive it: handed to them, it holds the lock
    until they end as well.
    """
    if path is None:
        return ()
    lock = _open(path)
    fcntl.flock(lock, fcntl.LOCK_SH)
    _held.append(lock)
    return (lock,)


def take(path: Path) -> int | None:
    """Hold a machine's lock alone; return the descriptor that holds it until it is closed, or None if another has it.

    Raises:
        OSError: the file cannot be opened.
    """
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def is_held(path: Path) -> bool:
    """Return whether any process holds a machine's lock.

    Raises:
        OSError: the file cannot be opened.
    """
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
    # `1: FLOCK  ADVISORY  READ 4711 08:01:131 0 EOF`; who waits has an arrow behind the number.
    rows = [line.split() for line in lines if "->" not in line]
    return tuple(int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode)


def _open(path: Path) -> int:
    """Open a lock's file, which may belong to another user: reading is enough for a `flock`.

    It is created only if it is not there: in /tmp, the kernel refuses to "open or create" the file of another user.
    """
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue  # another process was quicker
        os.fchmod(lock, 0o644)  # whatever the umask: sessions of all users wait for each other
        return lock
