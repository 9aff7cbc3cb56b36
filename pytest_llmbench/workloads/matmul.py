"""How fast a rank's device multiplies matrices: the ceiling that a training's rate is held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

# Large enough for the device's full rate, small enough for any memory: 3 times 128 MiB, or 4 MiB.
_SIDE = {"cuda": 8192, "cpu": 1024}
_BLOCK_S = 0.05


def measure(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Measure the dense matrix-product rate of this rank while all ranks measure theirs.

    Square matrices of 8192 (GPU) or 1024 (CPU) with entries from N(0, 1), in blocks of about 50 ms between
    two synchronisations; the first block warms up and sizes the others. All ranks start together,
    because shared power, cooling and memory make a device alone faster than one among its neighbours.

    Args:
        device: what to measure.
        dtype: what the training multiplies in.
        seconds: for how long, after the warm-up.

    Returns:
        The median of the blocks, FLOP/s; one product is 2 side³ operations.
    """
    side = _SIDE[device.type]
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    _block(left, right, out, products=2)
    products = max(1, round(_BLOCK_S / (_block(left, right, out, products=2) / 2)))
    dist.barrier()
    times = list(_blocks(left, right, out, products=products, seconds=seconds))
    return 2.0 * side**3 * products / statistics.median(times)


def _blocks(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, *, products: int, seconds: float
) -> Iterator[float]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield _block(left, right, out, products=products)


def _block(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, *, products: int) -> float:
    """Seconds that some products take, on the host's clock and up to the last of them."""
    synchronize(left.device)
    start = time.perf_counter()
    for _ in range(products):
        torch.matmul(left, right, out=out)
    synchronize(left.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was asked to; the CPU has by then."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
