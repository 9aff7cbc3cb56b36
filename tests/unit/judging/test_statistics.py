"""Statistics: what each number is, on one run by hand and on any run by its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.quantity import UNITS
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.flops import flops_per_token
from pytest_llmbench.judging.statistics import (
    OF_TELEMETRY,
    STATISTICS,
    Measurement,
    judged_steps,
    measure,
    steady_of,
    window,
)
from tests.conftest import known

from .conftest import small, step_lists

RECIPE = small(steps=9, warm_up={"steps": 5})


def measurement(
    steps: tuple[Step, ...], gpus: int = 8, matmul: float | None = 8e12, peak: float | None = 16e12
) -> Measurement:
    """Build what is measured from the steps of `RECIPE`."""
    return Measurement(
        recipe=RECIPE, steps=steps, judged=judged_steps(RECIPE, steps), gpus=gpus, matmul_flops_per_s=matmul,
        peak_flops_per_s=peak, telemetry=[watched(rank) for rank in range(gpus)],
    )  # fmt: skip


def watched(rank: int) -> GpuTelemetry:
    """What a GPU did in the 4 s of the judged steps: 100 W."""
    return GpuTelemetry(
        rank=rank, gpu=f"GPU-{rank}", seconds=4.0, samples=8, energy_j=400.0, energy_error_j=5.0, power_w=101.0,
        sm_clock_mhz=1500.0, sm_clock_min_mhz=1400.0 + rank, memory_clock_mhz=3201.0, temperature_max_degc=50.0 + rank,
        memory_used_max_bytes=2.0**34, throttled=int(rank == 0), power_capped=2,
    )  # fmt: skip


def values(m: Measurement) -> dict[str, float]:
    return {name: metric.value for name, metric in measure(m).items()}


def scaled(steps: tuple[Step, ...], factor: float) -> tuple[Step, ...]:
    return tuple(step.model_copy(update={"seconds": factor * known(step.seconds)}) for step in steps)


STEPS = step_lists(RECIPE)
HAND = tuple(
    Step(
        step=number, seconds=seconds, tokens=256, samples=8, loss=loss, grad_norm=1.0, peak_memory_bytes=memory, ranks=1
    )
    for number, seconds, loss, memory in [
        (1, 99.0, 5.0, None), (2, 9.0, 5.0, 2**31), (3, 9.0, 5.0, 2**32), (4, 9.0, 5.0, 1), (5, 9.0, 5.0, 1),
        (6, 0.5, 4.0, 1), (7, 1.0, 4.0, 1), (8, 0.5, 4.0, 1), (9, 2.0, 3.0, 1),
    ]
)  # fmt: skip


def test_a_run_worked_out_by_hand() -> None:
    """Steps 6 to 9 take 4 s for 1024 tokens in 32 sequences; their median is 0.75 s."""
    found = values(measurement(HAND))
    flops_per_s = 256 * flops_per_token(RECIPE.model, 32)
    assert found == pytest.approx({
        "throughput": 256.0, "samples_per_s": 8.0, "tokens_per_s_per_gpu": 32.0, "time_for_20m_tokens": 78125.0,
        "step_time": 0.75, "warm_up_time": 135.0, "tflops_per_gpu": flops_per_s / 8e12,
        "mfu": 100 * flops_per_s / 16e12, "matmul_fraction": 100 * flops_per_s / 8e12, "loss_drop": 2.0,
        "peak_memory": 4.0, "power_mean": 100.0, "energy_per_token": 8 * 400 / 1024,
        "tokens_per_joule": 1024 / (8 * 400), "clock_mean": 1500.0, "clock_min": 1400.0, "throttled": 100 / 64,
        "power_capped": 25.0, "temperature_max": 57.0, "memory_used_max": 16.0,
    })  # fmt: skip


def test_every_statistic_has_a_unit_and_a_rule() -> None:
    metrics = measure(measurement(HAND))
    assert metrics.keys() == STATISTICS.keys()
    for name, statistic in STATISTICS.items():
        assert statistic.unit in UNITS
        assert statistic.rule
        assert (metrics[name].unit, metrics[name].rule) == (statistic.unit, statistic.rule)


def test_the_warm_up_rule_says_which_steps_are_judged() -> None:
    """`skip_first` goes by the steps' numbers, and reports name the window."""
    assert [step.step for step in judged_steps(RECIPE, HAND)] == [6, 7, 8, 9]
    assert [step.step for step in judged_steps(RECIPE, HAND[3:])] == [6, 7, 8, 9]
    assert window(RECIPE, None) == "steps 6 to 9 (warm-up rule skip_first 5)"


def test_what_has_no_meaning_is_left_out() -> None:
    """On CPUs without a known rate there is no number per GPU, no MFU, no fraction: none of them is 0."""
    bare = tuple(step.model_copy(update={"peak_memory_bytes": None}) for step in HAND)
    found = values(measurement(bare, gpus=0, matmul=None, peak=None))
    missing = {"tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "matmul_fraction", "peak_memory"} | OF_TELEMETRY.keys()
    assert STATISTICS.keys() - found.keys() == missing


@given(STEPS, st.floats(1e-2, 1e2))
def test_slower_steps_lower_every_rate_alike(steps: tuple[Step, ...], factor: float) -> None:
    before, after = values(measurement(steps)), values(measurement(scaled(steps, factor)))
    times = {"time_for_20m_tokens", "step_time", "warm_up_time"}
    for name in before:
        power = 1 if name in times else 0 if name in {"loss_drop", "peak_memory", *OF_TELEMETRY} else -1
        assert after[name] == pytest.approx(before[name] * factor**power)


@given(STEPS, st.floats(1e-3, 1e3))
def test_warm_up_never_influences_a_time_or_rate(steps: tuple[Step, ...], factor: float) -> None:
    warm_up = RECIPE.warm_up.steps
    stalled = scaled(steps[:warm_up], factor) + steps[warm_up:]
    before, after = values(measurement(steps)), values(measurement(stalled))
    assert after.pop("warm_up_time") == pytest.approx(factor * before.pop("warm_up_time"))
    assert after == before


@pytest.mark.parametrize("damaged", [
    Step(step=5, seconds=1e308, tokens=9),
    Step(step=5, seconds=1.0, tokens=10**300),
], ids=["time", "tokens"])  # fmt: skip
def test_numbers_too_large_to_add_have_no_steady_part(damaged: Step) -> None:
    """A damaged log may have durations, or numbers of tokens, whose sums are not finite."""
    steps = [*(Step(step=number, seconds=1e308, tokens=8) for number in range(1, 5)), damaged]
    assert steady_of(steps) is None
