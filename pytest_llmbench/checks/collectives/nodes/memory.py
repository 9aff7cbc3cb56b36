"""How large messages may be: memory that a rank has for its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.curves import size_name
from pytest_llmbench.workloads.rank.context import RankContext


def free_bytes(context: RankContext, device: torch.device) -> int:
    """Memory that this rank may use: nine tenths of what its GPU has free, or its share of half of the node's."""
    if device.type == "cuda":
        return int(0.9 * torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kib * 1024 // 2 // context.ranks_per_node


def fitting(sizes: Sequence[int], free: float) -> tuple[int, list[str]]:
    """The largest size of which two buffers fit, and a note if that is not the largest of all.

    Raises:
        RunError: `no_memory`, when none fits.
    """
    fitting = [size for size in sizes if 2 * size <= free]
    if not fitting:  #: error no_memory: Check: the smallest message does not fit into memory
        raise RunError("no_memory", f"two buffers of {size_name(min(sizes))} do not fit into {free / 2**20:.0f} MiB")
    largest, wanted = max(fitting), max(sizes)
    if largest == wanted:
        return largest, []
    needed = f"two buffers of {size_name(wanted)} do not fit into the {free / 2**30:.1f} GiB that a rank has free"
    return largest, [f"sizes end at {size_name(largest)}: {needed}"]
