"""What compute probes do on a node: products and their correctness, bandwidth, telemetry."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_llmbench.checks.compute.nodes import compute, gemm, sweep
from pytest_llmbench.checks.compute.nodes.answer import CopyRates, DeviceRates, GemmRate, SweptProduct
from pytest_llmbench.checks.compute.nodes.compute import LoadTelemetry
from pytest_llmbench.workloads.rank import gpu_samples
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.file_barrier import FileBarrier
from pytest_llmbench.workloads.rank.probe import ProbeLog

_CPU = torch.device("cpu")
NVML = Path(__file__).parents[3] / "standins" / "nvml"
_CONFIG = {"measure": ["gemm", "memory"], "side": 128, "seconds": 0.02, "block_s": 0.01, "timeout_s": 10.0}


@pytest.fixture
def rank(context: RankContext) -> RankContext:
    return replace(context, config=_CONFIG)


def test_a_node_says_how_fast_and_how_right_it_is(rank: RankContext, tmp_path: Path) -> None:
    first = compute.measure(rank, ProbeLog(rank))
    again = replace(rank, folder=tmp_path / "again")
    second = compute.measure(again, ProbeLog(again))
    assert DeviceRates.model_validate_json(json.dumps(first.model_dump(), allow_nan=False), strict=True) == first
    assert first.gemm is not None
    assert second.gemm is not None
    told = first.gemm.precisions["fp32"]
    assert told.digest == second.gemm.precisions["fp32"].digest
    assert (first.gemm.factors, first.setting) == (second.gemm.factors, second.setting)
    assert told.changed == 0 < told.repeated
    assert 0 < (told.error or 0) < 1e-5
    assert 1e7 < (first.memory or 0) < 1e13
    assert first.host_device is None


def test_factors_are_the_same_everywhere() -> None:
    assert gemm.factors(8).digest == gemm.factors(8).digest != gemm.factors(9).digest


def _multiplied(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[int, torch.Tensor], object]) -> GemmRate:
    """What is told of a device that spoils its products, by how many it made before."""
    prepare, count = gemm.prepare, 0

    def broken(*args: Any) -> Any:
        left, right, multiply = prepare(*args)

        def spoiled() -> torch.Tensor:
            nonlocal count
            out = multiply()
            spoil(count, out)
            count += 1
            return out

        return left, right, spoiled

    monkeypatch.setattr(gemm, "prepare", broken)
    # Long enough for many products, whatever else the machine does meanwhile.
    return gemm.gemm("fp32", gemm.factors(64), _CPU, seconds=0.5, start=lambda: None)


def test_a_product_that_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(count: int, out: torch.Tensor) -> None:
        if count > 5:
            out.view(torch.int32)[3, 5] ^= 1

    right = gemm.gemm("fp32", gemm.factors(64), _CPU, seconds=0.05, start=lambda: None)
    told = _multiplied(monkeypatch, flip)
    assert 0 < told.changed <= told.repeated
    assert (told.digest, told.error) == (right.digest, right.error)


def test_a_product_that_is_always_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _multiplied(monkeypatch, lambda _, out: out.mul_(1.01))
    assert told.changed == 0
    assert (told.error or 0) > 0.01


def test_a_product_that_is_not_finite_has_no_error_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _multiplied(monkeypatch, lambda _, out: out[7, 7].fill_(torch.nan))
    assert (told.error, told.changed) == (None, 0)


@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_rowwise"])
def test_products_of_all_shapes_are_right(name: SweptProduct) -> None:
    """The factors are rectangular, and every entry of a wrong product shows."""
    assert sweep.why_no_product(name, _CPU) == ""
    found = sweep.sweep(name, _CPU, seconds=10.0, start=lambda: None, shapes=[(16, 32, 48), (32, 16, 64)])
    assert ([shape[:3] for shape in found.curve], found.left_out) == ([(16, 32, 48), (32, 16, 64)], 0)
    assert all(0.0 < (shape.error or 0.0) < 0.05 for shape in (*found.curve, found.best))
    assert all(shape.rate <= shape.fastest for shape in found.curve)


def test_the_fastest_shape_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short measurement that is too good by chance does not count: the best ones are measured again."""
    shapes = [(16, 16, 16 * k) for k in range(1, 7)]
    slow = {16 * k: [1e-6 * k] * 2 for k in range(1, 7)} | {32: [1e-7, 1.0], 80: [4e-6] * 2}
    turns = {k: iter(times) for k, times in slow.items()}

    def timed(multiply: Callable[[], torch.Tensor], *_: Any) -> list[float]:
        k = multiply.__closure__[0].cell_contents.shape[1]  # type: ignore[index]
        return [9.0, next(turns[k], slow[k][1])]

    monkeypatch.setattr(sweep, "_time", timed)
    turns[16] = iter([1e-6] * 3)  # it is measured once more, before the start
    found = sweep.sweep("bf16", _CPU, seconds=10.0, start=lambda: None, shapes=shapes)
    assert max(found.curve, key=lambda shape: shape.rate).k == 32
    assert found.best.k == 80
    assert found.best.rate == pytest.approx(2 * 16 * 16 * 80 / 4e-6)


def test_a_search_ends_in_time() -> None:
    found = sweep.sweep("bf16", _CPU, seconds=1e-9, start=lambda: None, shapes=[(16, 16, 16)] * 5)
    assert (len(found.curve), found.left_out) == (1, 4)


def test_a_wrong_product_of_a_shape_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    make = sweep.make_product

    def broken(*args: Any) -> Any:
        left, right, multiply = make(*args)
        return left, right, lambda: multiply().mul_(1.1)

    monkeypatch.setattr(sweep, "make_product", broken)
    found = sweep.sweep("bf16", _CPU, seconds=10.0, start=lambda: None, shapes=[(64, 64, 64)])
    assert (found.best.error or 0.0) > 0.05


@pytest.mark.parametrize("sms", [132, 148, 108, 16, 1])
def test_the_first_shapes_leave_no_sm_idle(sms: int) -> None:
    for m, n in sweep.whole_waves(sms):
        tiles = m // 128 * (n // 256)
        assert tiles % sms == m % 128 == n % 256 == 0
    assert (1536, 2816) in sweep.whole_waves(132)


@pytest.mark.parametrize(("allowed", "word"), [(True, "high"), (False, "highest")])
def test_tf32_is_a_choice_for_a_while(*, allowed: bool, word: str) -> None:
    before = torch.get_float32_matmul_precision()
    with gemm.tf32(allowed=allowed):
        assert torch.get_float32_matmul_precision() == word
    assert torch.get_float32_matmul_precision() == before


def test_copies_are_alone_then_together(rank: RankContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks: one after the other, then both at once, each way; nobody waits for ever."""
    busy, most, lock, both = 0, {"alone": 0}, threading.Lock(), threading.Barrier(2, timeout=120)

    def copied(*_: Any, to_device: bool, start: Callable[[], object], **__: Any) -> float:
        nonlocal busy
        start()
        with lock:
            busy += 1
            alone = "all" not in threading.current_thread().name
            most["alone"] = max(most["alone"], busy if alone else 0)
        if not alone:
            both.wait()
        with lock:
            busy -= 1
        return 1.0 if to_device else 2.0

    found: dict[int, CopyRates] = {}

    def run(number: int) -> None:
        mine = replace(rank, rank=number, local_rank=number, world_size=2, ranks_per_node=2)
        with FileBarrier(tmp_path / "meeting", number, range(2), 120.0) as barrier:

            def start(what: str) -> Callable[[], None]:
                threading.current_thread().name = what
                return lambda: barrier.wait(what)

            found[number] = compute._measure_copies(mine, _CPU, start)

    monkeypatch.setattr(compute, "copy", copied)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = CopyRates(host_to_device=1.0, host_to_device_all=1.0, device_to_host=2.0, device_to_host_all=2.0)
    assert found == {0: there, 1: there}
    assert most["alone"] == 1


def test_a_load_has_a_rate_for_each_block(rank: RankContext) -> None:
    told = compute.sustain(rank, ProbeLog(rank))
    times = [at_s for at_s, _ in told.rates]
    assert times == sorted(times)
    assert all(1e6 < rate < 1e15 for _, rate in told.rates)
    assert told.precision == "fp32"
    assert (told.telemetry, told.trouble) == ((), None)


@pytest.fixture
def gpu(rank: RankContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankContext:
    """A rank whose GPU is that of the stand-in for NVML, with a series of one row."""
    row = {"power": 690_500, "sm": 1455, "temperature": 58, "throttle_reasons": 0x4}
    series = tmp_path / "series.json"
    series.write_text(json.dumps({"gpus": ["GPU-0"], "row_s": 60.0, "rows": [row]}))
    monkeypatch.setenv("NVML_SERIES", str(series))
    monkeypatch.syspath_prepend(NVML)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(gpu_samples, "gpu_uuid", lambda _: "GPU-0")
    return rank


def _watch(rank: RankContext) -> LoadTelemetry:
    """Watch until there is a sample, or a reason for none."""
    telemetry = LoadTelemetry()
    with gpu_samples.sampled(rank, telemetry):
        while not telemetry.samples and telemetry.trouble is None:
            time.sleep(0.01)
    return telemetry


def test_a_gpu_is_sampled_by_nvml(gpu: RankContext) -> None:
    telemetry = _watch(gpu)
    sample = telemetry.samples[0]
    assert (sample.clock_mhz, sample.temperature_degc, sample.power_w, sample.reasons) == (1455, 58, 690.5, 4)
    assert 0 <= sample.at_s < 60
    assert telemetry.trouble is None


def test_without_nvml_there_is_a_reason_and_no_telemetry(gpu: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVML_SERIES")
    telemetry = _watch(gpu)
    assert (telemetry.trouble, telemetry.samples) == ("NVML: NVML Shared Library Not Found", [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    telemetry = _watch(gpu)
    assert "nvidia-ml-py is not installed" in (telemetry.trouble or "")
    assert not telemetry.samples
