"""This machine instead of nodes of a cluster, for one session at a time."""

import os
import socket
import tempfile
from pathlib import Path

from pytest_llmbench.cluster.allocation import Allocation, Waiting
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.wire.task import Owner
from pytest_llmbench.workloads.node.machine_lock import holders, is_held, take


class ThisHost(Allocation):
    """This machine. Locks let one session at a time measure on it: two would each see half a machine.

    The session holds the first lock, and its ranks hold the second, because they outlive a session that is killed.
    """

    def __init__(self) -> None:
        self._lock: int | None = None

    def hosts(self) -> tuple[str, ...] | Waiting:
        """This host, as soon as other sessions and the ranks that they left behind are gone from it.

        Raises:
            ClusterError: opening a lock failed.
        """
        own, ranks = _lock_file("this-host"), _lock_file("ranks")
        try:
            if self._lock is None:
                self._lock = take(own)
                if self._lock is None:
                    return Waiting(reason=f"another session measures on this machine{_processes(own)}")
                if is_held(ranks):
                    self.release()
                    who = f"ranks of a session that was killed still run on this machine{_processes(ranks)}"
                    return Waiting(reason=f"{who}; they end themselves soon")
        except OSError as error:
            raise ClusterError(
                f"{error.filename}: {error.strerror}, and it shows whether another session measures on this machine; "
                "let its owner delete it, or let everybody read it (chmod a+r)"
            ) from error
        return (socket.gethostname(),)

    def release(self) -> None:
        """Let the next session measure."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def owner_of(settings: Settings, heartbeat: Heartbeat) -> Owner | None:
    """Name the owner of a session's ranks; None if they run in pytest's own process."""
    if settings.cluster == "debug":
        return None
    lock = _lock_file("ranks") if settings.cluster == "local" else None  # Slurm keeps sessions apart
    return Owner(path=heartbeat.path, ttl_s=heartbeat.ttl_s, machine_lock=lock)


def _lock_file(what: str) -> Path:
    #: variable TMPDIR: the folder of the locks by which one session at a time measures on this machine:
    #:  `llmbench-this-host.lock` of the session, `llmbench-ranks.lock` of its ranks, which may outlive it
    return Path(tempfile.gettempdir()) / f"llmbench-{what}.lock"


def _processes(lock: Path) -> str:
    pids = [pid for pid in holders(lock) if pid > 0 and pid != os.getpid()]
    return f" (process {', '.join(map(str, pids[:4]))}{' and others' if len(pids) > 4 else ''})" if pids else ""
