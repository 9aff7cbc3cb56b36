"""What a GPU did, by part of a training step: from the names of its kernels, and where those do not tell, shapes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal[
    "attention", "matrix products", "head and cross entropy", "optimizer", "elementwise and norms", "communication",
    "copies", "other",
]  # fmt: skip
_ELEMENTWISE = (
    "elementwise", "layer_?norm", "gammabeta", "reduce_kernel", "embedding", "index", "scatter", "gather", "catarray",
    "sort", "scan", "dropout", "fill", "cub::", "arange", "copy_kernel", "distribution",
)  # fmt: skip
# The first pattern that is found in a name decides, so that those of narrower meaning come first: cutlass is in the
# names of attention kernels, softmax in those of the cross entropy, elementwise in those of Adam.
_PATTERNS: tuple[tuple[Part, str], ...] = (
    ("communication", r"nccl|nvshmem|multimem_|(one|two)_shot_all_reduce|symm_mem|symmetric_memory|^memcpy PtoP"),
    ("copies", r"^mem(cpy|set)\b"),
    (
        "head and cross entropy",
        r"log_?softmax|nll_?loss|cross_?entropy|log_?sum_?exp|prepare_softmax_online|losses_and_gradient",
    ),
    # Inductor names a copy around attention after it, and unfused scores by their softmax.
    (
        "attention",
        r"^(?!triton_(poi|per|red)_).*(flash|fmha|sdpa|attention)|soft_?max|masked_fill|triu|compute_dot_do_o|convert_dq",
    ),
    ("optimizer", r"multi_tensor|fused_?adam|adam_?w?(?![a-z])|lpnorm|foreach|triton_for_"),
    ("matrix products", r"nvjet|cutlass|xmma|gemm|gemv|cublas|splitk|triton_tem_\w*(mm|dot)|wgmma|matmul"),
    ("elementwise and norms", "triton_(poi|per|red)_|" + "|".join(_ELEMENTWISE)),
)
_COMPILED = tuple((part, re.compile(pattern, re.IGNORECASE)) for part, pattern in _PATTERNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One kernel, copy or fill on the GPU.

    Attributes:
        start_us, duration_us: on the GPU's clock.
        shapes: of the tensors that the operation which started it was given.
    """

    name: str
    start_us: float
    duration_us: float
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Where the time of a profiled window went, seconds.

    Attributes:
        window_s: from the start of the first kernel to the end of the last.
        by_part: kernel time by part; kernels that overlap count both.
        exposed_s: of communication, with no other kernel at the same time.
        idle_s: no kernel at all.
        largest: kernels with the most time: name, part, seconds, count.
    """

    window_s: float
    by_part: Mapping[Part, float]
    exposed_s: float
    idle_s: float
    largest: tuple[tuple[str, Part, float, int], ...]


def part_of(name: str) -> Part:
    """The part of a training step that a kernel is of, by its name alone."""
    return next((part for part, pattern in _COMPILED if pattern.search(name)), "other")


def part_with_shapes(kernel: Kernel, vocabulary: Collection[int]) -> Part:
    """The same, but a product with a side of the vocabulary's size is the head's, and so is what goes over logits.

    Args:
        kernel: what ran.
        vocabulary: sizes that the vocabulary may have on a rank, padded or not.
    """
    part = part_of(kernel.name)
    product = part == "matrix products" and any(size in vocabulary for shape in kernel.shapes for size in shape)
    # The embedding, [V, h], is also copied and summed elsewhere; logits are [.., V].
    logits = part == "elementwise and norms" and any(shape[-1] in vocabulary for shape in kernel.shapes if shape)
    return "head and cross entropy" if product or logits else part


def totals(kernels: Iterable[tuple[Part, float]]) -> dict[Part, float]:
    """Add up durations by part."""
    found: dict[Part, float] = {}
    for part, duration in kernels:
        found[part] = found.get(part, 0.0) + duration
    return found


def read_trace(trace: Mapping[str, Any]) -> list[Kernel]:
    """Kernels, copies and fills of a trace that `torch.profiler` exported, in order of their start."""
    shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
    found = []
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "cpu_op" and "External id" in args:
            sides = args.get("Input Dims", ())
            shapes[args["External id"]] = tuple(tuple(side) for side in sides if all(isinstance(n, int) for n in side))
        elif event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and event.get("ph") == "X":
            found.append(event)
    kernels = [
        Kernel(
            name=event["name"],
            start_us=float(event["ts"]),
            duration_us=float(event["dur"]),
            shapes=shapes.get(event.get("args", {}).get("External id", -1), ()),
        )
        for event in found
    ]
    return sorted(kernels, key=lambda kernel: kernel.start_us)


def breakdown(kernels: Collection[Kernel], vocabulary: Collection[int] = (), most: int = 15) -> Breakdown:
    """Add up a window of kernels.

    Raises:
        ValueError: there are none.
    """
    if not kernels:
        raise ValueError("no kernel ran on a GPU in the profiled steps")
    parts = [(kernel, part_with_shapes(kernel, vocabulary)) for kernel in kernels]
    window = max(each.start_us + each.duration_us for each in kernels) - min(each.start_us for each in kernels)
    busy = covered_us(kernels)
    by_name: dict[tuple[str, Part], list[float]] = {}
    for kernel, part in parts:
        by_name.setdefault((kernel.name, part), []).append(kernel.duration_us)
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:most]
    return Breakdown(
        window_s=window / 1e6,
        by_part=totals((part, kernel.duration_us / 1e6) for kernel, part in parts),
        exposed_s=(busy - covered_us([kernel for kernel, part in parts if part != "communication"])) / 1e6,
        idle_s=(window - busy) / 1e6,
        largest=tuple((name, part, sum(times) / 1e6, len(times)) for (name, part), times in largest),
    )


def covered_us(kernels: Iterable[Kernel]) -> float:
    """Time in which at least one of some kernels runs, microseconds."""
    covered, end = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda each: each.start_us):
        stop = kernel.start_us + kernel.duration_us
        covered += max(0.0, stop - max(end, kernel.start_us))
        end = max(end, stop)
    return covered
