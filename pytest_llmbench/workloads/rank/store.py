"""The key-value store through which the ranks of a run find each other, on a port of the kernel's choice."""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not marked so

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import PRIVATE, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.workloads.node.shared_files import exists_now
from pytest_llmbench.workloads.rank.context import RankContext

_LOOPBACK = "127.0.0.1"


def open_store(context: RankContext, timeout_s: float) -> TCPStore:
    """Connect this rank: rank 0 serves the store, and says in the run's folder where.

    Args:
        context: this rank.
        timeout_s: how long to wait for rank 0, and for a key.

    Raises:
        RunError: `no_rendezvous`, when rank 0 does not show up.
    """
    timeout = timedelta(seconds=timeout_s)
    path = context.folder / layout.RENDEZVOUS
    if context.rank == 0:
        host = _LOOPBACK if context.nodes == 1 else socket.gethostname()
        store = TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        write_text(path, json.dumps({"host": host, "port": store.port}), mode=PRIVATE)
        return store
    _wait_for(path, timeout_s)
    address = json.loads(path.read_bytes())
    return TCPStore(address["host"], address["port"], timeout=timeout, wait_for_workers=False)


def _wait_for(path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.02
    while not exists_now(path):
        if time.monotonic() > deadline:
            raise RunError(
                "no_rendezvous",  #: error no_rendezvous: rank 0 did not publish its address in the run's folder in time
                f"rank 0 did not publish {path} within {timeout_s:g} s: see its log, and check that every "
                "node shares this folder",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)  # thousands of ranks ask the same server
