"""Joins the ranks of a run into one process group."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not marked so
from torch.nn import functional

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.files import PRIVATE, make_folder, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.workloads.node import machine
from pytest_llmbench.workloads.node.shared_files import wait_for
from pytest_llmbench.workloads.rank.context import RankContext

_LOOPBACK = "127.0.0.1"
_PRINTING, _MOST_PRINTED = 64, 4 << 20  # nodes with a file of NCCL's lines, and its size, bytes


def open_store(context: RankContext, timeout_s: float) -> TCPStore:
    """Connect this rank to the store that rank 0 serves; its address is in the run's folder.

    Raises RunError `no_rendezvous` if the address of rank 0 is missing after `timeout_s`.
    """
    timeout = timedelta(seconds=timeout_s)
    path = context.folder / layout.RENDEZVOUS
    if context.nodes == 1:
        #: variable *_SOCKET_IFNAME: network of gloo and NCCL in a one-node run: `lo` unless it is set
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if context.device == "cuda":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if context.rank == 0:
        host, server = _listen(context.nodes)
        port = server.getsockname()[1] if server else 0
        store = TCPStore(
            host, port, is_master=True, timeout=timeout, wait_for_workers=False,
            master_listen_fd=server.detach() if server else None,
        )  # fmt: skip
        write_text(path, json.dumps({"host": host, "port": store.port}), mode=PRIVATE)
        return store
    if not wait_for(path, timeout_s):
        raise RunError(
            "no_rendezvous",  #: error no_rendezvous: rank 0 did not publish its address in the run's folder in time
            f"rank 0 did not publish {path} within {timeout_s:g} s: see its log, and check that every node shares this "
            "folder",
        )
    address = json.loads(path.read_bytes())
    return TCPStore(address["host"], address["port"], timeout=timeout, wait_for_workers=False)


def _listen(nodes: int) -> tuple[str, socket.socket | None]:
    """The host of the store, and a socket that listens there alone; without one the store listens on all networks.

    Between nodes it is the address of the machine's name, as it is for gloo, unless the name means the machine itself.
    """
    name = socket.gethostname()
    if nodes == 1:
        return _LOOPBACK, socket.create_server((_LOOPBACK, 0))
    with suppress(OSError):
        if not (address := socket.gethostbyname(name)).startswith("127."):
            return address, socket.create_server((address, 0))
    return name, None


@contextmanager
def process_group(context: RankContext, timeout_s: float = 600.0) -> Iterator[torch.device]:
    """Join this rank with the others of its run within this block; yields its device, which is the current one.

    The timeout is for the other ranks, at the start and in every collective. CPU ranks use gloo. GPU ranks use NCCL
    alone, which is enough for DDP, FSDP and gradient clipping; gloo would be another network to configure. Raises
    RunError `no_rendezvous` if the address of rank 0 is late, and `no_gpu` if this rank lacks a GPU.
    """
    device = device_of(context)
    if context.device == "cuda":
        _record_collectives(context)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "nccl" if context.device == "cuda" else "gloo",
        store=open_store(context, timeout_s),
        rank=context.rank,
        world_size=context.world_size,
        timeout=timeout,
        device_id=device if context.device == "cuda" else None,
    )
    yield device
    # Only after success: a group that lost a rank is left to the end of the process, as its destructor waits for the
    # others. The barrier keeps rank 0, which serves the store, until all leave.
    dist.barrier()
    dist.destroy_process_group()
    with suppress(OSError):
        printed = context.folder / layout.NCCL / f"{layout.rank_name(context.rank)}.log"
        if printed.stat().st_size > _MOST_PRINTED:
            os.truncate(printed, _MOST_PRINTED)


def _record_collectives(context: RankContext) -> None:
    """Let NCCL record its last collectives, for the analysis of a hang and of its own timeout."""
    #: variable TORCH_NCCL_*: NCCL's last 2000 collectives are kept for a hang, in `stacks/nccl-*`, unless it is set
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    prefix = context.folder / layout.STACKS / "nccl-"
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(prefix))
    make_folder(prefix.parent)
    #: variable NCCL_DEBUG: unless it is set, NCCL prints the way of the data into the run's folder `nccl`, on at most
    #:  64 nodes
    if "NCCL_DEBUG" not in os.environ and context.local_rank == 0 and context.rank < _PRINTING * context.ranks_per_node:
        folder = context.folder / layout.NCCL
        make_folder(folder)
        path = folder / f"{layout.rank_name(context.rank)}.log"
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,SHM,ENV", "NCCL_DEBUG_FILE": str(path)}


def limit_threads(device: torch.device) -> None:
    """Let PyTorch use this rank's share of the cores, or one thread if the rank feeds a GPU.

    A rank that feeds a GPU computes pieces of a few thousand tokens on its cores. Waking dozens of threads for such a
    piece takes a hundred times longer than the work, while the GPU waits.
    """
    torch.set_num_threads(1 if device.type == "cuda" else machine.cpu_threads(_ranks_on_this_machine(device)))


def exchange_texts(text: str, device: torch.device) -> list[str]:
    """The texts of all ranks in their order. They travel as tensors, because PyTorch would unpickle objects."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    size = torch.tensor([len(data)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(int(each) for each in sizes)
    parts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(parts, functional.pad(data, (0, longest - len(data))))
    return [bytes(part[: int(each)].tolist()).decode() for part, each in zip(parts, sizes, strict=True)]


def _ranks_on_this_machine(device: torch.device) -> int:
    """Count the ranks of the group that run under this kernel.

    Several Slurm nodes may be one machine (a test cluster, virtual nodes); counting by node name, their
    ranks would each start threads for all of its cores and mostly wait for one another.
    """
    mine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return exchange_texts(mine, device).count(mine)


def device_of(context: RankContext) -> torch.device:
    """The device of this rank; a GPU becomes the current one. Raises RunError `no_gpu` if this rank lacks a GPU."""
    if context.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", machine.gpu_index(context.local_rank))
    torch.cuda.set_device(device)
    return device
