"""GPUs over a window: energy by their counters, the rest by samples, and no number where nobody watched."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.record.telemetry import SLOWDOWNS, GpuTelemetry, reasons_of
from pytest_llmbench.core.wire.step_events import GPU_PERIOD_S, GpuEvent
from pytest_llmbench.judging.statistics import OF_TELEMETRY, Measurement
from pytest_llmbench.judging.telemetry import first_of, gaps
from pytest_llmbench.readers.steps.gpu_window import MOST_ERROR, between, edge, summarize
from tests.support.gpu_logs import BEGIN, POWER_W, sample, samples, told

from .conftest import small

LONGEST_S = 3 * GPU_PERIOD_S
SAMPLED = (
    "power_w", "sm_clock_mhz", "sm_clock_min_mhz", "memory_clock_mhz", "temperature_max_degc", "memory_used_max_bytes",
    "throttled", "power_capped",
)  # fmt: skip
ENERGY = ("energy_j", "energy_error_j")


def watched(seen: list[GpuEvent], start_s: float, end_s: float, **said: Any) -> GpuTelemetry:
    """What a GPU did from one second after `BEGIN` to another, in one step."""
    return summarize(told(**said), seen, BEGIN + start_s, BEGIN + end_s, 3)


def known(found: GpuTelemetry) -> set[str]:
    return {name for name in (*SAMPLED, *ENERGY) if getattr(found, name) is not None}


def test_a_window_worked_out_by_hand() -> None:
    """From 5.25 to 25.25 s, 40 samples; one is slow, hot and slowed down by hardware."""
    slow = {"sm_clock_mhz": 655, "temperature_degc": 90, "clocks_event_reasons": 0x4C, "memory_used_bytes": 2**36}
    outside = {"sm_clock_mhz": 1, "clocks_event_reasons": 0x8}
    found = watched(samples(30.0, {10.0: slow, 5.0: outside, 25.5: outside}), 5.25, 25.25)
    assert found.energy_j == pytest.approx(20 * POWER_W)
    assert found.energy_error_j == pytest.approx(2 * 0.25 * POWER_W)
    assert found == GpuTelemetry(
        rank=3, gpu="GPU-0", seconds=20.0, samples=40, unwatched_s=0.0, energy_j=found.energy_j,
        energy_error_j=found.energy_error_j, power_w=POWER_W, sm_clock_mhz=(39 * 1455 + 655) / 40, sm_clock_min_mhz=655,
        memory_clock_mhz=3201, temperature_max_degc=90, memory_used_max_bytes=2**36, throttled=1, power_capped=40,
        reasons={"power cap": 40, "hardware slowdown": 1, "hardware thermal slowdown": 1}, gaps=(),
    )  # fmt: skip


def test_reasons_without_a_name_are_told_by_number() -> None:
    """A driver may have more of them than we know; none of those is a slowdown."""
    found = watched(samples(30.0, {10.0: {"clocks_event_reasons": 0x401}}), 5.0, 25.0)
    assert found.reasons == {"power cap": 40, "idle": 1, "0x400": 1}
    assert found.throttled == 0


def without(seen: list[GpuEvent], after_s: float, before_s: float) -> list[GpuEvent]:
    return [each for each in seen if not after_s < each.time - BEGIN < before_s]


def test_a_gap_within_leaves_the_energy() -> None:
    found = watched(without(samples(30.0), 10.0, 17.5), 5.0, 25.0)
    assert known(found) == set(ENERGY)
    assert found.energy_j == pytest.approx(20 * POWER_W)
    assert found.unwatched_s == 7.5
    assert found.gaps == ("no sample for 7.5 s of the judged window",)


def test_three_periods_are_no_gap() -> None:
    found = watched(without(samples(30.0), 10.0, 10.0 + LONGEST_S), 5.0, 25.0)
    assert known(found) == {*SAMPLED, *ENERGY}
    assert found.gaps == ()


@pytest.mark.parametrize(
    ("hole", "gap"),
    [((3.0, 8.0), "no sample for 3 s of the judged window"), ((20.0, 40.0), "no sample for 5 s of the judged window")],
)
def test_a_gap_at_an_end_leaves_nothing(hole: tuple[float, float], gap: str) -> None:
    found = watched(without(samples(30.0), *hole), 5.0, 25.0)
    assert known(found) == set()
    assert found.gaps == (gap, "no samples close enough around both ends of the judged window to know its energy")


def test_samples_that_begin_late_or_end_early_leave_what_they_saw() -> None:
    """Less than three periods from an end of the window the clocks are known; the counter at that end is not."""
    for seen in (without(samples(30.0), -1.0, 6.0), without(samples(30.0), 24.0, 40.0)):
        found = watched(seen, 5.0, 25.0)
        assert known(found) == set(SAMPLED)
        assert found.gaps == ("no samples close enough around both ends of the judged window to know its energy",)


@pytest.mark.parametrize(("name", "lost", "words"), [
    ("energy_mj", set(ENERGY), "energy"),
    ("power_w", {"power_w"}, "power"),
    ("sm_clock_mhz", {"sm_clock_mhz", "sm_clock_min_mhz"}, "SM clock"),
    ("memory_clock_mhz", {"memory_clock_mhz"}, "memory clock"),
    ("temperature_degc", {"temperature_max_degc"}, "temperature"),
    ("memory_used_bytes", {"memory_used_max_bytes"}, "memory in use"),
    ("clocks_event_reasons", {"throttled", "power_capped"}, "reasons for lower clocks"),
])  # fmt: skip
@pytest.mark.parametrize("times", [(10.0,), tuple(GPU_PERIOD_S * number for number in range(61))], ids=["one", "all"])
def test_what_some_samples_lack_is_not_known(name: str, lost: set[str], words: str, times: tuple[float, ...]) -> None:
    """A number of some of the samples is none of the window; the others are as they would be."""
    found = watched(samples(30.0, {at_s: {name: None} for at_s in times}), 5.0, 25.0)
    assert known(found) == {*SAMPLED, *ENERGY} - lost
    missing = sum(5.0 <= at_s <= 25.0 for at_s in times)
    assert found.gaps == (f"{missing} of 41 samples lack the {words}",)


@pytest.mark.parametrize(("since", "how"), [(10, "went backwards"), (0, "stood still")])
def test_a_counter_that_does_not_rise_is_none(since: float, how: str) -> None:
    seen = [each if each.time < BEGIN + since else replace(each, energy_mj=7) for each in samples(30.0)]
    found = watched(seen, 5.0, 25.0)
    assert known(found) == set(SAMPLED)
    assert found.gaps == (f"its energy counter {how}",)


def test_a_clock_that_is_set_back_leaves_nothing() -> None:
    back = [each if each.time < BEGIN + 10 else replace(each, time=each.time - 2) for each in samples(30)]
    found = watched(back, 5.0, 20.0)
    assert known(found) == set()
    assert found.gaps == ("its clock was set back",)


def test_a_short_window_has_no_energy() -> None:
    """Between two samples the counter is guessed, and in a second that is most of it."""
    found = watched(samples(30.0), 5.25, 6.25)
    assert known(found) == set(SAMPLED)
    (gap,) = found.gaps
    assert gap == "the judged window is too short for its samples: its energy could be wrong by 50 %"


PIECES = st.lists(st.floats(8.0, 20.0), min_size=2, max_size=3)
POWERS = st.lists(st.floats(60.0, 700.0), min_size=140, max_size=140)


def of_powers(powers: list[float]) -> list[GpuEvent]:
    """Samples of a GPU that drew so much between each two of them."""
    seen, joules = [], 0.0
    for number, power in enumerate(powers):
        seen.append(sample(GPU_PERIOD_S * number, energy_mj=round(1e3 * joules), power_w=power))
        joules += GPU_PERIOD_S * power
    return seen


@given(POWERS, PIECES, st.floats(0.6, 2.0))
def test_energy_adds_up(powers: list[float], pieces: list[float], start: float) -> None:
    seen = of_powers(powers)

    def at(seconds: float) -> Any:
        time = BEGIN + seconds
        before = next(each for each in reversed(seen) if each.time <= time)
        return edge(time, before, next(each for each in seen if each.time >= time), LONGEST_S)

    cuts = [start + sum(pieces[:number]) for number in range(len(pieces) + 1)]
    parts = [between(at(since), at(until)).joules for since, until in pairwise(cuts)]
    whole = between(at(cuts[0]), at(cuts[-1])).joules
    if whole is not None and None not in parts:
        assert sum(part for part in parts if part is not None) == pytest.approx(whole, rel=1e-6)
        assert watched(seen, cuts[0], cuts[-1]).energy_j == pytest.approx(whole, rel=1e-6)


@given(POWERS, st.floats(0.0, 30.0), st.floats(0.01, 38.0))
def test_energy_is_right_within_its_error(powers: list[float], start: float, seconds: float) -> None:
    found = watched(of_powers(powers), start, start + seconds)
    if found.energy_j is None or found.energy_error_j is None:
        assert found.gaps
        return
    assert found.energy_error_j <= MOST_ERROR * found.energy_j
    spent = sum(
        power * max(0.0, min(start + seconds, GPU_PERIOD_S * (number + 1)) - max(start, GPU_PERIOD_S * number))
        for number, power in enumerate(powers)
    )
    assert abs(found.energy_j - spent) <= found.energy_error_j + 0.01


@given(st.lists(st.floats(0.0, 60.0), max_size=40), st.floats(0.0, 50.0), st.floats(0.01, 20.0))
def test_no_number_comes_of_what_nobody_saw(times: list[float], start: float, seconds: float) -> None:
    """Whenever samples were taken: without one within there is no number at all, and never one without a reason."""
    found = watched([sample(at_s) for at_s in sorted(times)], start, start + seconds)
    within = [at_s for at_s in times if BEGIN + start <= BEGIN + at_s <= BEGIN + start + seconds]
    assert found.samples == len(within)
    if not within:
        assert known(found) == set()
    assert bool(found.gaps) == (known(found) != {*SAMPLED, *ENERGY})
    edges = [BEGIN + start, *sorted(BEGIN + at_s for at_s in within), BEGIN + start + seconds]
    far = any(after - before > LONGEST_S for before, after in pairwise(edges))
    if far:
        assert known(found) & set(SAMPLED) == set()


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
