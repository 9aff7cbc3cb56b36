"""The search for the shape whose product is the fastest: the ceiling of what a device multiplies.

Each repetition is timed by itself. On a GPU its caches are overwritten before, as mamf-finder does
(https://github.com/stas00/ml-engineering). The GPU rests meanwhile, so that its power limit lowers the clock less than
under the long load of `gemm`.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from itertools import product as combinations
from typing import get_args

import torch

from pytest_llmbench.checks.compute.nodes.answer import ShapeRate, ShapeSweep, SweptProduct
from pytest_llmbench.checks.compute.nodes.gemm import STORED, Multiply, error_of
from pytest_llmbench.workloads.training.matmul import product, synchronize

Shape = tuple[int, int, int]
PRODUCTS: tuple[SweptProduct, ...] = get_args(SweptProduct)
# Best shapes (m, n, k) that mamf-finder found on H100, H200, GH200, B200 and GB200.
_PUBLISHED: tuple[Shape, ...] = (
    (1280, 4096, 12032), (2048, 2048, 13312), (1024, 9216, 14336), (1024, 15360, 4096), (1024, 14336, 14336),
    (15360, 4096, 3072), (4096, 9728, 2048),
)  # fmt: skip
_GRID = {"cuda": ((2048, 4096, 8192), (2048, 4096, 8192, 16384), (2048, 4096, 8192)), "cpu": ((128, 256),) * 3}
# Rows and columns of the part of a product that an SM computes at a time.
_TILE = (128, 256)
_WAVES, _DEPTHS = (1, 2, 4), (4096, 8192, 16384)
_SIDES = range(1024, 16385)
_CACHE_BYTES = 256 * 2**20
# Repetitions: before the measured ones, of each shape, of the best.
_REPEATS = {"cuda": (5, 20, 40), "cpu": (1, 3, 5)}
_AGAIN = 3  # the best shapes that are measured again: the highest of many short measurements is high by chance, too


def sweep(
    name: SweptProduct, device: torch.device, *, seconds: float, start: Callable[[], object], shapes: list[Shape]
) -> ShapeSweep:
    """Measure shapes for `seconds`, one at least, and the best of them again. `start` is as for `gemm`."""
    most = [max(sizes) for sizes in zip(*((m * k, n * k) for m, n, k in shapes), strict=True)]
    generator = torch.Generator(device).manual_seed(0)
    entries = [torch.randn(size, device=device, generator=generator) for size in most]
    warm_up, few, many = _REPEATS[device.type]
    cache = torch.empty(_CACHE_BYTES if device.type == "cuda" else 0, dtype=torch.uint8, device=device)

    def measure(shape: Shape, repeats: int) -> ShapeRate:
        m, n, k = shape
        first, second = entries[0][: m * k].view(m, k), entries[1][: n * k].view(n, k).t()
        left, right, multiply = make_product(name, first, second)
        times = _time(multiply, device, cache, warm_up + repeats)[warm_up:]
        error = error_of(left.float(), right.float(), multiply())
        flop = 2.0 * m * n * k
        return ShapeRate(m, n, k, flop / statistics.median(times), flop / min(times), error)

    measure(shapes[0], 1)
    start()
    end, curve = time.perf_counter() + seconds, []
    for shape in shapes:
        curve.append(measure(shape, few))
        if time.perf_counter() > end:
            break
    leading = sorted(curve, key=lambda measured: -measured.rate)[:_AGAIN]
    again = [measure(measured[:3], many) for measured in leading]
    best = max(again, key=lambda measured: measured.rate)
    return ShapeSweep(curve=tuple(curve), best=best, left_out=len(shapes) - len(curve))


def make_product(
    name: SweptProduct, left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Multiply]:
    """`matmul.product` of two fp32 matrices by the name of the product."""
    return product(left, right, STORED[name.removesuffix("_rowwise")], rowwise=name.endswith("_rowwise"))


def why_no_product(name: SweptProduct, device: torch.device) -> str:
    """PyTorch's reason for having no such product in fp8 on a device; empty if it has one."""
    if not name.startswith("fp8"):
        return ""
    ones = torch.ones(128, 128, device=device)
    try:
        make_product(name, ones, ones.t())[2]()
        synchronize(device)
    except (RuntimeError, AttributeError) as error:
        return str(error).partition("\n")[0]
    return ""


def shapes_for(device: torch.device) -> list[Shape]:
    """The shapes to try: first those that share the work evenly among SMs, and published ones, then a grid."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
    likely = [(m, n, k) for k in _DEPTHS for m, n in whole_waves(sms)]
    published = _PUBLISHED if sms else ()
    return [*dict.fromkeys((*likely, *published, *combinations(*_GRID[device.type])))]


def whole_waves(sms: int) -> Iterator[tuple[int, int]]:
    """Yield sides of products that all SMs work on to the end, the two squarest of each number of waves."""
    for wave in _WAVES if sms else ():
        tiles = wave * sms
        sides = [
            (_TILE[0] * rows, _TILE[1] * (tiles // rows)) for rows in range(1, tiles + 1) if tiles % rows == 0
        ]  # fmt: skip
        fitting = [(m, n) for m, n in sides if m in _SIDES and n in _SIDES]
        yield from sorted(fitting, key=lambda side: max(side) / min(side))[:2]


def _time(multiply: Multiply, device: torch.device, cache: torch.Tensor, repeats: int) -> list[float]:
    """Time each repetition, in seconds."""
    if device.type == "cpu":
        times = [time.perf_counter()]
        for _ in range(repeats):
            multiply()
            times.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(times)]
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    for begin, end in events:
        cache.zero_()
        begin.record()
        multiply()
        end.record()
    synchronize(device)
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]
