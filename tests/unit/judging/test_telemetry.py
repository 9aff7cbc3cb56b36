"""One number of all GPUs, or none; and the words for why."""

from typing import Any

import pytest

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry, reasons_of
from pytest_llmbench.judging.statistics import OF_TELEMETRY, Measurement
from pytest_llmbench.judging.telemetry import first_of, gaps

from .conftest import small


def gpu(rank: int = 0, **changes: Any) -> GpuTelemetry:
    values: dict[str, Any] = {
        "rank": rank, "gpu": f"GPU-{rank}", "seconds": 10.0, "samples": 20, "energy_j": 6000.0, "energy_error_j": 100.0,
        "power_w": 601.0, "sm_clock_mhz": 1500.0, "sm_clock_min_mhz": 1400.0, "memory_clock_mhz": 3201.0,
        "temperature_max_degc": 60.0, "memory_used_max_bytes": 2.0**36, "throttled": 0, "power_capped": 10,
        "reasons": {"power cap": 10},
    }  # fmt: skip
    return GpuTelemetry(**(values | changes))


def values(*ranks: GpuTelemetry, gpus: int | None = None, tokens: int | None = 24_000) -> dict[str, float | None]:
    watched = Measurement(
        recipe=small(), steps=(), judged=[Step(step=1, seconds=10.0, tokens=tokens)], matmul_flops_per_s=None,
        gpus=len(ranks) if gpus is None else gpus, peak_flops_per_s=None, telemetry=ranks,
    )  # fmt: skip
    return {name: statistic.compute(watched) for name, statistic in OF_TELEMETRY.items()}


NONE = dict.fromkeys(OF_TELEMETRY)


def test_two_gpus_worked_out_by_hand() -> None:
    """Energies add up, powers and clocks are averaged, of the rest the worst counts."""
    other = gpu(
        1, energy_j=4000.0, seconds=8.0, samples=16, sm_clock_mhz=1400.0, sm_clock_min_mhz=700.0, throttled=9,
        power_capped=8, temperature_max_degc=91.0, memory_used_max_bytes=2.0**37,
    )  # fmt: skip
    assert values(gpu(), other) == pytest.approx({
        "power_mean": (600 + 500) / 2, "energy_per_token": 10_000 / 24_000, "tokens_per_joule": 2.4,
        "clock_mean": 1450.0, "clock_min": 700.0, "throttled": 25.0, "power_capped": 50.0, "temperature_max": 91.0,
        "memory_used_max": 128.0,
    })  # fmt: skip


@pytest.mark.parametrize(("fields", "lost"), [
    (("energy_j",), {"power_mean", "energy_per_token", "tokens_per_joule"}),
    (("sm_clock_mhz", "sm_clock_min_mhz"), {"clock_mean", "clock_min"}), (("throttled",), {"throttled"}),
    (("power_capped",), {"power_capped"}), (("temperature_max_degc",), {"temperature_max"}),
    (("memory_used_max_bytes",), {"memory_used_max"}),
], ids=lambda given: given[0] if isinstance(given, tuple) else "")  # fmt: skip
def test_what_one_gpu_does_not_tell_is_not_known_of_any(fields: tuple[str, ...], lost: set[str]) -> None:
    found = values(gpu(), gpu(1, **dict.fromkeys(fields)))
    assert {name for name, value in found.items() if value is None} == lost


def test_a_gpu_that_nobody_or_two_ranks_watched_leaves_nothing() -> None:
    assert values(gpu(), GpuTelemetry(rank=1, gaps=("it did not watch its GPU",))) == NONE
    assert values(gpu(), gpus=2) == NONE
    assert values(gpus=0) == NONE
    assert gaps([gpu()], 2) == ["1 ranks report 2 GPUs"]
    assert gaps([], 8) == []
    shared = gpu(1, gpu="GPU-0")
    assert values(gpu(), shared) == NONE
    assert gaps([gpu(), shared], 2) == ["ranks 0, 1 share GPU-0"]


def test_without_tokens_the_energy_is_of_no_token() -> None:
    """A framework that does not count them leaves that out; its power is known."""
    found = values(gpu(), tokens=None)
    assert (found["energy_per_token"], found["tokens_per_joule"], found["power_mean"]) == (None, None, 600.0)


def test_ranks_with_the_same_reason_are_named_together() -> None:
    lost = [gpu(rank, gaps=("no sample for 7.5 s of the judged window",)) for rank in range(10)]
    lost.append(gpu(10, gaps=("its energy counter stood still",)))
    assert gaps(lost, 11) == [
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: no sample for 7.5 s of the judged window",
        "rank 10: its energy counter stood still",
    ]
    assert first_of(gaps(lost, 11)).endswith("of the judged window, and 1 more")
    assert first_of(["one"]) == "one"


def test_reasons_are_named_by_their_bits() -> None:
    assert reasons_of(0) == []
    assert [reasons_of(bit) for bit in SLOWDOWNS] == [[words] for words in SLOWDOWNS.values()]
    assert reasons_of(0x28 | 0x200) == ["hardware slowdown", "software thermal slowdown", "0x200"]
