"""Measurements of a node's devices, all at the same time: products, memory, the way to the host.

Each takes `seconds` after the warm-up. Its `start` returns when the other ranks are warm, too.
"""

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, get_args

import torch

from pytest_llmbench.checks.compute.nodes import gemm, sweep
from pytest_llmbench.checks.compute.nodes.answer import (
    CopyRates,
    DeviceRates,
    GemmPrecision,
    GemmRate,
    GemmRates,
    ShapeSweep,
    ShapeSweeps,
    SustainedLoad,
    SweptProduct,
    TelemetrySample,
)
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.machine import GpuPath
from pytest_llmbench.core.wire.step_events import GpuEvent, TelemetryEvent
from pytest_llmbench.workloads.node.hardware import read_path
from pytest_llmbench.workloads.node.machine import cpu_threads, device_name
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.file_barrier import FileBarrier
from pytest_llmbench.workloads.rank.gpu_samples import sampled
from pytest_llmbench.workloads.rank.probe import ProbeLog
from pytest_llmbench.workloads.rank.rendezvous import device_of
from pytest_llmbench.workloads.training.matmul import rates

_PRECISIONS: Mapping[str, tuple[GemmPrecision, ...]] = {"cuda": get_args(GemmPrecision), "cpu": ("fp32",)}
_MIB = 2**20
# A vector of this share of the GPU's memory, or of this size.
_SHARE_OF_GPU, _LARGEST, _VECTOR_ON_CPU = 32, 4096 * _MIB, 64 * _MIB
_COPIED = 256 * _MIB
# NVML is sampled more often under load; a load of an hour would fill its record.
_SAMPLE_S = 0.9

StepStart = Callable[[str], Callable[[], None]]


def measure(context: RankContext, log: ProbeLog) -> DeviceRates:
    """Measure this rank's device while the node's other ranks do the same.

    The config: `measure`, any of `gemm`, `memory` and `host_device`; `side` of the matrices; `seconds` for each number;
    `timeout_s`, the longest wait for the other ranks of the node.
    """
    config, device = context.config, _device(context)
    products: GemmRates | None = None
    memory: float | None = None
    copies: CopyRates | None = None
    with _node_barrier(context) as barrier:

        def start(what: str) -> Callable[[], None]:
            log.phase(what)
            return lambda: barrier.wait(what)

        if "gemm" in config["measure"]:
            log.phase("factors")
            products = _measure_gemms(context, device, start)
        if "memory" in config["measure"]:
            size = _VECTOR_ON_CPU
            if device.type == "cuda":
                size = min(_LARGEST, torch.cuda.get_device_properties(device).total_memory // _SHARE_OF_GPU)
            memory = triad(device, size, seconds=config["seconds"], start=start("memory"))
        if "host_device" in config["measure"]:
            copies = _measure_copies(context, device, start)
    return DeviceRates(
        device=device_name(context), setting=gemm.setting_of(context), gemm=products, memory=memory, host_device=copies
    )


def sweep_shapes(context: RankContext, log: ProbeLog) -> ShapeSweeps:
    """Search the shape with the fastest product while the node's other ranks do the same.

    The config: `seconds` for each kind of product, and `timeout_s`.
    """
    config, device = context.config, _device(context)
    products: dict[SweptProduct, ShapeSweep] = {}
    lacking: dict[SweptProduct, str] = {}
    with _node_barrier(context) as barrier:
        for name in sweep.PRODUCTS:
            log.phase(f"shapes in {name}")
            start = partial(barrier.wait, f"shapes in {name}")
            reason = _why_lacking(name.removesuffix("_rowwise"), device) if device.type == "cuda" else ""
            if reason := reason or sweep.why_no_product(name, device):
                lacking[name] = reason
                start()
                continue
            shapes = sweep.shapes_for(device)
            products[name] = sweep.sweep(name, device, seconds=config["seconds"], start=start, shapes=shapes)
    return ShapeSweeps(device=device_name(context), products=products, lacking=lacking)


def sustain(context: RankContext, log: ProbeLog) -> SustainedLoad:
    """Measure the product's rate over minutes, with the telemetry of the GPU.

    The config: `side`, `seconds`, `block_s` (the time over which each rate is averaged) and `timeout_s`.
    """
    config, device = context.config, _device(context)
    precision: GemmPrecision = "bf16" if device.type == "cuda" and not _why_lacking("bf16", device) else "fp32"
    log.phase("factors")
    left, _, multiply = gemm.prepare(precision, gemm.factors(config["side"]), device)
    telemetry = LoadTelemetry()
    with _node_barrier(context) as barrier, gemm.tf32(allowed=False), ExitStack() as watched:

        def start() -> None:
            barrier.wait("sustained")
            log.phase(f"{precision} products for {config['seconds']:g} s")
            telemetry.begin()
            watched.enter_context(sampled(context, telemetry))

        blocks = rates(multiply, device, seconds=config["seconds"], start=start, block_s=config["block_s"])
        flops = [(telemetry.elapsed(), 2.0 * left.shape[0] ** 3 * rate) for rate in blocks]
    return SustainedLoad(
        device=device_name(context), precision=precision, rates=tuple(flops), telemetry=tuple(telemetry.samples),
        trouble=telemetry.trouble,
    )  # fmt: skip


class LoadTelemetry:
    """Clocks, temperature, power and throttling of a rank's GPU under load, about once a second."""

    def __init__(self) -> None:
        self.samples: list[TelemetrySample] = []
        self.trouble: str | None = None  # the reason for missing samples
        self.clock = UnixClock()
        self._began = self.clock.now()

    def begin(self) -> None:
        self._began = self.clock.now()

    def elapsed(self) -> float:
        return self._seconds(self.clock.now())

    def telemetry(self, event: TelemetryEvent | GpuEvent) -> None:
        """Take a sample of `gpu_samples.sampled`, or the reason for missing ones."""
        if isinstance(event, TelemetryEvent):
            self.trouble = self.trouble or event.trouble
        elif not self.samples or self._seconds(event.time) - self.samples[-1].at_s >= _SAMPLE_S:
            sample = TelemetrySample(
                at_s=self._seconds(event.time), clock_mhz=event.sm_clock_mhz, temperature_degc=event.temperature_degc,
                power_w=event.power_w, reasons=event.clocks_event_reasons,
            )  # fmt: skip
            self.samples.append(sample)

    def _seconds(self, time: float) -> float:
        return round(max(0.0, time - self._began), 3)


def triad(device: torch.device, size: int, *, seconds: float, start: Callable[[], object]) -> float:
    """Measure a = b + 3 c in fp32, the triad of STREAM, with vectors of `size` bytes, more than any cache holds.

    Returns:
        B/s, read and written: 3 times the size each time; the median of blocks of about 50 ms.
    """
    result, first, second = (torch.ones(size // 4, device=device) for _ in range(3))
    blocks = rates(lambda: torch.add(first, second, alpha=3.0, out=result), device, seconds=seconds, start=start)
    return 3.0 * size * statistics.median(blocks)


def copy(
    device: torch.device, size: int, *, to_device: bool, seconds: float, start: Callable[[], object],
    pinned: bool = True,
) -> float:  # fmt: skip
    """Measure copies of `size` bytes between the GPU and memory of the host, pinned unless a fault is simulated.

    Returns:
        B/s, each byte counted once; the median of blocks of about 50 ms.
    """
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    on_device = torch.zeros(size, dtype=torch.uint8, device=device)
    source, target = (host, on_device) if to_device else (on_device, host)
    blocks = rates(lambda: target.copy_(source, non_blocking=True), device, seconds=seconds, start=start)
    return size * statistics.median(blocks)


def _measure_gemms(context: RankContext, device: torch.device, start: StepStart) -> GemmRates:
    given = gemm.factors(context.config["side"])
    products: dict[GemmPrecision, GemmRate] = {}
    lacking: dict[GemmPrecision, str] = {}
    for precision in _PRECISIONS[device.type]:
        if reason := _why_lacking(precision, device):
            lacking[precision] = reason
            continue
        begin = start(f"gemm {precision}")
        products[precision] = gemm.gemm(precision, given, device, seconds=context.config["seconds"], start=begin)
    return GemmRates(side=context.config["side"], factors=given.digest, precisions=products, lacking=lacking)


def _why_lacking(precision: str, device: torch.device) -> str:
    """The reason why a device lacks a precision; empty if it has it."""
    if precision in {"tf32", "bf16"} and torch.cuda.get_device_capability(device) < (8, 0):
        return "needs compute capability 8.0"
    if precision == "fp8" and torch.cuda.get_device_capability(device) < (8, 9):
        return "needs compute capability 8.9"
    if precision == "fp8" and not hasattr(torch, "_scaled_mm"):
        return "this PyTorch has no scaled product"
    return ""


def _measure_copies(context: RankContext, device: torch.device, start: StepStart) -> CopyRates:
    """Measure each direction, one rank of the node after the other, and then all of them at once."""
    rates: dict[str, float] = {}
    path = GpuPath()
    pinned = context.simulate is None or context.simulate.name != "pageable-memory"
    how: dict[str, Any] = {"seconds": context.config["seconds"], "pinned": pinned}
    for direction, to_device in (("host_to_device", True), ("device_to_host", False)):
        for turn in range(context.ranks_per_node):
            start(f"{direction} of GPU {turn}")()
            if turn == context.local_rank:
                rates[direction] = copy(device, _COPIED, to_device=to_device, start=lambda: None, **how)
        start(f"{direction} of all: warm-up")()
        together = start(f"{direction} of all")
        rates[f"{direction}_all"] = copy(device, _COPIED, to_device=to_device, start=together, **how)
        path = read_path(context)  # before the link falls asleep
    return CopyRates(**rates, pinned=pinned, path=path)


def _node_barrier(context: RankContext) -> FileBarrier:
    first = context.rank - context.local_rank
    folder, ranks = context.folder / layout.MEETING / f"{first:05d}", range(first, first + context.ranks_per_node)
    return FileBarrier(folder, context.rank, ranks, context.config["timeout_s"])


def _device(context: RankContext) -> torch.device:
    device = device_of(context)
    if device.type == "cuda":
        torch.set_num_threads(cpu_threads(context.ranks_per_node))  # for the factors and the products in fp64
    return device
