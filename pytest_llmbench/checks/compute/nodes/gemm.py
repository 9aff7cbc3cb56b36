"""Dense matrix products of a rank's device, precision by precision: how fast they are, and whether they are right."""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pytest_llmbench.checks.compute.nodes.answer import GemmRate
from pytest_llmbench.workloads.node.machine import device_name
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.training.matmul import product, rates

STORED = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}  # fmt: skip
# Integers of the size of an element, to compare two results bit by bit: NaN differs from itself.
_BITS = {2: torch.int16, 4: torch.int32}
# Rows of a product that are computed again in fp64, all columns of each.
_ROWS = 16

Multiply = Callable[[], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """Two square matrices with entries from N(0, 1), fp32, on the host.

    `digest` is the SHA-256 of both; generators of other processors may differ in the last bit.
    """

    left: torch.Tensor
    right: torch.Tensor
    digest: str


def setting_of(context: RankContext) -> dict[str, str]:
    """Properties that two devices must share for bitwise equal numbers."""
    setting = {"device": device_name(context), "torch": str(torch.__version__)}
    if context.device == "cpu":
        return setting | {"cpu": torch.backends.cpu.get_cpu_capability(), "threads": str(torch.get_num_threads())}
    return setting | {"cuda": str(torch.version.cuda)}


def factors(side: int) -> Factors:
    """Make the matrices that every rank multiplies, from a fixed seed and on the host, independent of any GPU."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(side, side, generator=generator) for _ in range(2))
    return Factors(left=left, right=right, digest=_digest(left, right))


def gemm(
    precision: str, given: Factors, device: torch.device, *, seconds: float, start: Callable[[], object]
) -> GemmRate:
    """Multiply the matrices for `seconds` after the warm-up, and look at the results; fp8 is e4m3, its result bf16.

    `start` returns when the other ranks are warm, too.
    """
    with tf32(allowed=precision == "tf32"):
        left, right, multiply = prepare(precision, given, device)
        out = multiply()
        first, changed = out.clone(), 0
        blocks = []
        for rate in rates(multiply, device, seconds=seconds, start=start):
            blocks.append(rate)
            changed += not torch.equal(_bits(out), _bits(first))
    return GemmRate(
        rate=2.0 * left.shape[0] ** 3 * statistics.median(blocks), digest=_digest(first), repeated=len(blocks),
        changed=changed, error=error_of(left.float().cpu(), right.float().cpu(), first.cpu()),
    )  # fmt: skip


def prepare(precision: str, given: Factors, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, Multiply]:
    """Move the matrices to the device in their precision; also return a function that multiplies them in place.

    Raises RuntimeError if this device or this PyTorch lacks such a product.
    """
    return product(given.left.to(device), given.right.to(device), STORED[precision])


@contextmanager
def tf32(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in fp32 products for the time of a `with` block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error_of(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float | None:
    """Compare 16 rows of a product with the same in fp64, computed where the factors are: `GemmRate.error`."""
    rows = torch.linspace(0, out.shape[0] - 1, _ROWS).long().to(out.device)
    some, factor, result = left[rows].double(), right.double(), out[rows].double()
    error = float((some @ factor - result).abs().max()) / math.sqrt(left.shape[1])
    return error if math.isfinite(error) and bool(torch.isfinite(out).all()) else None


def _bits(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.view(_BITS[matrix.element_size()])


def _digest(*matrices: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for matrix in matrices:
        digest.update(_bits(matrix).cpu().reshape(-1).numpy().data)
    return digest.hexdigest()
