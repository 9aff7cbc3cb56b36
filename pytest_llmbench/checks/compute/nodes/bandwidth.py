"""How fast a rank's device moves bytes: within its own memory, and between it and the host."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from pytest_llmbench.workloads.training.matmul import rates


def triad(device: torch.device, size: int, *, seconds: float, start: Callable[[], object]) -> float:
    """Measure a = b + 3 c in fp32, the triad of STREAM.

    Args:
        device: whose memory.
        size: bytes of each of the three vectors, far more than any cache holds.
        seconds: for how long, after the warm-up.
        start: returns when the other ranks are warm, too.

    Returns:
        B/s, read and written: 3 times the size each time; the median of blocks of about 50 ms.
    """
    result, first, second = (torch.ones(size // 4, device=device) for _ in range(3))
    blocks = rates(lambda: torch.add(first, second, alpha=3.0, out=result), device, seconds=seconds, start=start)
    return 3.0 * size * statistics.median(blocks)


def copy(device: torch.device, size: int, *, to_device: bool, seconds: float, start: Callable[[], object]) -> float:
    """Measure copies between the GPU and pinned memory of the host.

    Args:
        device: a GPU.
        size: bytes of each copy.
        to_device: from the host to the GPU, or back.
        seconds: for how long, after the warm-up.
        start: returns when the other ranks are warm, too.

    Returns:
        B/s, each byte counted once; the median of blocks of about 50 ms.
    """
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    blocks = rates(lambda: target.copy_(source, non_blocking=True), device, seconds=seconds, start=start)
    return size * statistics.median(blocks)
