"""Measures the rate of matrix products of a device, the ceiling of a training's rate; and adds products."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.distributed as dist

from pytest_llmbench.judging.flops import doubt
from pytest_llmbench.workloads.rank.steplog import StepLog

# Large enough for the device's full rate, small enough for any memory: 3 times 128 MiB, or 4 MiB.
_SIDE = {"cuda": 8192, "cpu": 1024}
# A GPU's rate falls in the first tenths of a second, with its clock.
_SECONDS = {"cuda": 1.0, "cpu": 0.15}
_BLOCK_S = {"cuda": 0.05, "cpu": 0.025}
# Largest number of measurements on a CPU.
_MOST = 6

Work = Callable[[], object]


@contextmanager
def ceiling(log: StepLog, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Measure the rate before the training within the block and, on a CPU, after it, and log each measurement.

    Other programs slow a CPU for seconds at a time, and a rate from such seconds is below what the training reaches
    later. So the highest rate counts, and a CPU measures until it has reached it twice. A GPU belongs to its rank alone
    and measures once.
    """
    log.phase(0, "matmul")
    together = [_measure_and_log(log, device, dtype)]
    yield
    while device.type == "cpu" and (len(together) == 1 or (len(together) < _MOST and doubt(together) > 1.0)):
        together.append(_measure_and_log(log, device, dtype))


def _measure_and_log(log: StepLog, device: torch.device, dtype: torch.dtype) -> float:
    """Measure and log this rank's rate; on a CPU return the sum over all ranks, so that all decide alike."""
    rate = measure(device, dtype)
    log.matmul(rate)
    if device.type != "cpu":
        return rate
    total = torch.tensor(rate, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def measure(device: torch.device, dtype: torch.dtype, seconds: float | None = None) -> float:
    """Measure the dense matrix-product rate of this rank while all ranks measure theirs, FLOP/s.

    Square matrices of 8192 (GPU) or 1024 (CPU) with entries from N(0, 1), in blocks of about 50 ms (25 ms) between two
    synchronisations, for 1 s (0.15 s) or for `seconds`. All ranks start together, because shared power, cooling and
    memory make a device alone faster than one among its neighbours.

    The median of the blocks counts. The best one would be too high for ranks that share processors: each rank has them
    to itself at times, so the sum of all ranks would count them twice.
    """
    side = _SIDE[device.type]
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, device=device, generator=generator) for _ in range(2))
    *_, multiply = product(left, right, dtype if device.type == "cuda" else torch.float32)
    seconds = _SECONDS[device.type] if seconds is None else seconds
    blocks = rates(
        multiply,
        device,
        seconds=seconds,
        start=dist.barrier,
        block_s=_BLOCK_S[device.type],
    )
    return 2.0 * side**3 * statistics.median(blocks)


def product(
    left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, *, rowwise: bool = False
) -> tuple[torch.Tensor, torch.Tensor, Callable[[], torch.Tensor]]:
    """Return two fp32 matrices in a type, and a function that multiplies them, always into the same memory.

    The product of factors in e4m3 is in bf16. `rowwise` gives each row of the left factor and each column of the right
    one a scale, instead of one for each factor; all scales are 1. Raises RuntimeError if this device or this PyTorch
    lacks such a product.
    """
    if dtype is not torch.float8_e4m3fn:
        left, right = left.to(dtype), right.to(dtype)
        out = left.new_empty(left.shape[0], right.shape[1])
        return left, right, lambda: torch.matmul(left, right, out=out)
    left, right = left.to(dtype), right.t().contiguous().to(dtype).t()  # the product needs it by columns
    out = left.new_empty(left.shape[0], right.shape[1], dtype=torch.bfloat16)
    sizes = ((left.shape[0], 1), (1, right.shape[1])) if rowwise else ((), ())
    scales = (left.new_ones(size, dtype=torch.float32) for size in sizes)
    # PyTorch's function for it is private.
    how = {**dict(zip(("scale_a", "scale_b"), scales, strict=True)),
           "out_dtype": out.dtype, "use_fast_accum": True, "out": out}  # fmt: skip
    return left, right, lambda: torch._scaled_mm(left, right, **how)  # type: ignore[arg-type]  # noqa: SLF001


def rates(
    work: Work, device: torch.device, *, seconds: float, start: Work, block_s: float = _BLOCK_S["cuda"]
) -> Iterator[float]:
    """Measure how often per second some work can be done, in blocks between synchronisations of the device.

    The work may return before the device has finished. `start` is called once after the warm-up and returns when the
    others are warm, too; then blocks of `block_s` follow for `seconds`, one at least. Yields repetitions per second for
    each block, without the time that the caller spends between blocks.
    """
    _block(work, device, products=2)
    times = max(1, round(block_s / (_block(work, device, products=2) / 2)))
    start()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield times / _block(work, device, products=times)


def _block(work: Work, device: torch.device, *, products: int) -> float:
    """Time some repetitions of the work on the host's clock, seconds, up to the last result."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(products):
        work()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the product of two matrices of any precision to an fp32 one in place.

    On a GPU from PyTorch 2.10 on, one kernel adds in fp32; otherwise a product of lower precision is rounded first.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif _widens(left.dtype, total.device):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left @ right)


@cache
def _widens(dtype: torch.dtype, device: torch.device) -> bool:
    """True if PyTorch can add a product of this type to an fp32 matrix there."""
    if device.type == "cpu":
        return False
    left, right = (torch.zeros(16, 16, dtype=dtype, device=device) for _ in range(2))
    total = torch.zeros(16, 16, device=device)
    try:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return True
