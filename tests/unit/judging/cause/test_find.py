"""The cause of a missed speed, from the evidence of a run."""

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.series import RankInfo, RankTimes
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.cause import Cause, find_cause, slower_gpus
from tests.unit.judging.cause.conftest import MakeRun, rank

WORK = {"data": 0.001, "forward": 0.06, "backward": 0.03, "optimizer": 0.004}


def cause(record: RunRecord, needed_s: float = 0.07, *, by_interval: bool = True, decided: bool = True) -> Cause:
    found = find_cause(record, needed_s, by_interval=by_interval, decided=decided)
    assert found is not None
    return found


def rank_of(found: Cause) -> int | None:
    """The rank that a cause names."""
    named = re.match(r"rank (\d+) on ", found.sentence)
    return int(named[1]) if named else None


def alike(number: int = 4, step_s: float = 0.1, **counters: Any) -> list[RankTimes]:
    return [rank(each, WORK, step_s, 1 / number, **counters) for each in range(number)]


def test_work_that_takes_that_long_is_compute(make_run: MakeRun) -> None:
    """No rank is named, and the measured rate of matrix products is what one can expect."""
    share = Metric(value=40.0, unit="%", rule="r")
    found = cause(make_run(alike(), transfer_s=0.005, metrics={"matmul_fraction": share}))
    assert (found.kind, rank_of(found)) == ("compute", None)
    assert found.sentence == (
        "ranks work for 95 ms of each 100 ms step, and none stands out; "
        "at the measured rate its matrix products alone would take 40 ms"
    )


@pytest.mark.parametrize("number", [2, 3, 4, 9])
def test_a_rank_that_the_others_wait_for_is_the_straggler(make_run: MakeRun, number: int) -> None:
    ranks = [rank(each, {"forward": 0.055}, 0.1, 0.0) for each in range(number)]
    ranks[1] = rank(1, {"forward": 0.095}, 0.1, 1.0)
    found = cause(make_run(ranks, transfer_s=0.005))
    assert (found.kind, rank_of(found)) == ("straggler", 1)
    assert found.sentence == (
        "rank 1 on n1 takes 95 ms of its own in each step, the slowest of the others 55 ms; the others wait for it in "
        "100 % of the steps; no counter of its host explains it; without that a step would take about 60 ms, and the "
        "threshold needs 70 ms"
    )


@pytest.mark.parametrize(("kind", "own", "counters"), [
    ("data", {"data": 0.045, "forward": 0.05}, {}),
    ("throttled", {"forward": 0.095}, {"throttled_s": 0.05, "delayed_s": 0.045}),
    ("host", {"forward": 0.095}, {"throttled_s": 0.0, "delayed_s": 0.035}),
])  # fmt: skip
def test_a_counter_explains_it(make_run: MakeRun, kind: str, own: dict[str, float], counters: dict[str, float]) -> None:
    usual = {"throttled_s": 0.0, "delayed_s": 0.0} if counters else {}
    ranks = [rank(each, {"data": 0.001, "forward": 0.05}, 0.1, 0.0, **usual) for each in range(3)]
    ranks[2] = rank(2, own, 0.1, 1.0, **counters)
    found = cause(make_run(ranks, transfer_s=0.005))
    assert (found.kind, rank_of(found)) == (kind, 2)


@pytest.mark.parametrize(("kind", "changes"), [
    ("throttled", {"throttled_s": 0.04, "delayed_s": 0.045}),
    ("host", {"throttled_s": 0.001, "delayed_s": 0.045}),
    ("memory", {"memory_stalled_s": 0.03}),
])  # fmt: skip
def test_time_that_all_ranks_lose(make_run: MakeRun, kind: str, changes: dict[str, Any]) -> None:
    found = cause(make_run(alike(**changes), transfer_s=0.005))
    assert (found.kind, rank_of(found)) == (kind, None)


def test_data_and_network_of_all_ranks(make_run: MakeRun) -> None:
    """Both are told with their time of each step; that of a link to expect is not known."""
    late = [rank(each, {"data": 0.04, "forward": 0.05}, 0.1, 0.5) for each in range(2)]
    assert cause(make_run(late, transfer_s=0.01)).kind == "data"
    linked = [rank(each, {"forward": 0.05}, 0.1, 0.5) for each in range(2)]
    found = cause(make_run(linked, transfer_s=0.05))
    assert found.kind == "network"
    assert "the time to expect of these links is not known" in found.sentence


def test_steps_alone_show_pauses_noise_and_a_slow_start(make_run: MakeRun) -> None:
    pauses = [1.5 if n % 20 == 19 else 0.1 for n in range(80)]
    assert cause(make_run(seconds=pauses)).kind == "pauses"
    chance = random.Random(1)
    noisy = [0.05 * chance.lognormvariate(0, 0.6) for _ in range(60)]
    assert cause(make_run(seconds=noisy), 0.04).kind == "noise"
    compiles = [*(0.4,) * 12, *(0.1,) * 18]
    assert cause(make_run(seconds=compiles), 0.12, decided=False).kind == "warm-up"


def test_a_slow_start_that_was_not_judged_is_no_cause(make_run: MakeRun) -> None:
    seconds = [*(0.4,) * 6, *(0.1,) * 40]
    record = make_run(alike(), seconds, transfer_s=0.005)
    assert record.steady is not None
    assert record.steady.left_out == 6
    assert cause(record).kind == "compute"
    assert cause(record, by_interval=False).kind == "warm-up"


def test_a_verdict_that_is_only_open_needs_no_cause(make_run: MakeRun) -> None:
    """Steps that are alike, by a threshold that is their speed: nothing is wrong with the run."""
    assert find_cause(make_run(alike(), transfer_s=0.005), 0.1, by_interval=True, decided=False) is None


def test_evidence_that_does_not_tell_is_said(make_run: MakeRun) -> None:
    """A log without phases, a rank with a gap, and ranks that wait inside their passes give no cause."""
    unseen = "not known: the log does not show how long each rank works, and how long it waits for others"
    assert str(cause(make_run())) == unseen
    broken = [*alike(2), RankTimes(rank=2, gap="its phases add up to 1 s, and its steps to 4 s")]
    assert str(cause(make_run(broken))).startswith(f"{unseen}: rank 2: its phases add up")
    assert str(cause(make_run(alike(2), transfer_s=0.005, layout={"tensor": 2}))) == unseen
    few = make_run(seconds=(0.1,) * 3)
    assert str(cause(few)) == "not known: fewer than 4 judged steps have a duration"


def test_a_missing_rank_is_not_compared(make_run: MakeRun) -> None:
    """A rank without a log may be the straggler: none of the others is named."""
    ranks = [rank(0, {"forward": 0.055}, 0.1, 0.0), rank(1, {"forward": 0.095}, 0.1, 1.0)]
    assert rank_of(cause(make_run(ranks, transfer_s=0.005).model_copy(update={"ranks": 3}))) is None


def test_a_rank_that_is_slow_now_and_then_is_not_the_straggler(make_run: MakeRun) -> None:
    """A straggler comes last in most of the steps, by more than its own scatter explains."""
    ranks = [rank(each, {"forward": 0.055}, 0.1, 0.3) for each in range(3)]
    seldom = rank(1, {"forward": 0.075}, 0.1, 0.4)
    assert rank_of(cause(make_run([ranks[0], seldom, ranks[2]], transfer_s=0.02))) is None
    scattered = seldom.model_copy(update={"last": 0.9, "spread": 0.1})
    assert rank_of(cause(make_run([ranks[0], scattered, ranks[2]], transfer_s=0.02))) is None


def in_turns(late: Mapping[int, float], spread: float = 0.08, **counters: Any) -> list[RankTimes]:
    """Ranks that scatter too much to be told apart by their means; some are late in a share of the steps."""
    own = {number: 0.05 + 0.05 * late.get(number, 0.0) for number in range(4)}
    told = (
        rank(
            number, {"forward": own[number]}, 0.1, 0.25, late=late.get(number, 0.0), late_s=0.05 * late.get(number, 0.0)
        )
        for number in own
    )
    return [
        each.model_copy(update={"spread": spread, **(counters if each.rank in late else dict.fromkeys(counters, 0.0))})
        for each in told
    ]


def test_a_rank_that_stands_still_in_turns_is_named(make_run: MakeRun) -> None:
    """If it alone is late again and again; a counter of its host may explain it."""
    found = cause(make_run(in_turns({2: 0.5})))
    assert (found.kind, rank_of(found)) == ("straggler", 2)
    assert found.sentence.startswith("rank 2 on n2 comes")
    assert "a quarter of a step or more after all others in 50 % of the steps" in found.sentence
    assert "no counter of its host explains it" in found.sentence
    found = cause(make_run(in_turns({2: 0.5}, delayed_s=0.024)))
    assert (found.kind, rank_of(found)) == ("host", 2)


@pytest.mark.parametrize("late", [{2: 0.05}, {2: 0.4, 1: 0.3}, dict.fromkeys(range(4), 0.2)])
def test_noise_of_several_ranks_names_none(make_run: MakeRun, late: dict[int, float]) -> None:
    """Late in two steps of 40 may be chance, and so is one of two that are late."""
    assert rank_of(cause(make_run(in_turns(late)))) is None


def on_gpus(record: RunRecord, rates: list[float], telemetry: list[GpuTelemetry]) -> RunRecord:
    infos = tuple(
        RankInfo(
            rank=n, host=f"n{n}", pid=7, local_rank=0, device="NVIDIA H200", versions={}, gpu=f"GPU-{n}",
            matmul_flops_per_s=1e12 * rate,
        )
        for n, rate in enumerate(rates)
    )  # fmt: skip
    changes = {"gpus": len(rates), "ranks": len(rates), "rank_info": infos, "telemetry": tuple(telemetry)}
    return record.model_copy(update=changes)


def telemetry(number: int, clock: float, throttled: int = 0) -> GpuTelemetry:
    return GpuTelemetry(
        rank=number, gpu=f"GPU-{number}", samples=100, sm_clock_mhz=clock, throttled=throttled,
        reasons={"hardware thermal slowdown": throttled} if throttled else {},
    )  # fmt: skip


def test_a_slow_gpu_is_named(make_run: MakeRun) -> None:
    record = make_run()
    slow = cause(on_gpus(record, [700.0, 700.0, 560.0], [telemetry(n, 1900) for n in range(3)]))
    assert (slow.kind, rank_of(slow)) == ("straggler", 2)
    assert slow.sentence.startswith("rank 2 on n2 (GPU-2) has matrix products of 560 TFLOP/s, 20 % less than the 700")
    hot = [telemetry(0, 1200, 60), telemetry(1, 1900)]
    held = cause(on_gpus(record, [700.0, 700.0], hot))
    assert (held.kind, rank_of(held)) == ("throttled", 0)
    assert "60 of 100 samples (hardware thermal slowdown in 60)" in held.sentence
    assert "1,200 MHz, that of the others 1,900 MHz" in held.sentence
    well = cause(on_gpus(record, [700.0, 699.0], [telemetry(n, 1900) for n in range(2)]))
    assert (well.kind, rank_of(well)) == ("not known", None)
    assert not list(slower_gpus(on_gpus(record, [700.0, 600.0, 0.0], [])))  # one was not measured


@pytest.mark.parametrize("watched", [[telemetry(0, 0), telemetry(1, 0)], [telemetry(0, 1200, 60), telemetry(1, 0)]])
def test_a_clock_of_0_is_unknown(make_run: MakeRun, watched: list[GpuTelemetry]) -> None:
    """A driver that does not report the clock of a GPU may give 0."""
    assert "clock" not in cause(on_gpus(make_run(), [700.0, 700.0], watched)).sentence


def test_a_gpu_hides_its_host(make_run: MakeRun) -> None:
    """Data that a host gets while its GPU has work costs nothing; else it does."""
    hidden = {"data": 0.03, "forward": 0.02, "device": 0.05}
    shown = {"data": 0.06, "forward": 0.039, "device": 0.001}
    for phases, kind in ((hidden, "not known"), (shown, "data")):
        ranks: Any = [RankTimes(rank=n, seconds=0.1, phases=phases) for n in range(2)]  # type: ignore[arg-type]
        assert cause(make_run(ranks, gpus=2)).kind == kind


share = st.floats(0.0, 1.0)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owns=st.lists(
    st.floats(0.0, 0.1), min_size=1, max_size=6,
), lasts=st.lists(share, min_size=6, max_size=6),
   counters=st.lists(st.one_of(st.none(), share), min_size=3, max_size=3), needed=st.floats(-1.0, 1.0),
   flags=st.tuples(st.booleans(), st.booleans()))  # fmt: skip
def test_any_evidence_gives_one_line(
    make_run: MakeRun, owns: list[float], lasts: list[float], counters: list[float | None], needed: float,
    flags: tuple[bool, bool],
) -> None:  # fmt: skip
    """Nothing in a record breaks it, and a rank that is named is one that takes longest."""
    delayed, throttled, stalled = counters
    ranks = [
        rank(n, {"forward": own}, 0.1, lasts[n], delayed_s=delayed, throttled_s=throttled, memory_stalled_s=stalled)
        for n, own in enumerate(owns)
    ]
    found = find_cause(make_run(ranks, transfer_s=0.01), needed, by_interval=flags[0], decided=flags[1])
    if found is None:
        assert not flags[1]
        return
    assert "\n" not in str(found)
    if (number := rank_of(found)) is not None:
        assert owns[number] == max(owns)


TCP = "data between nodes went over TCP (NET/Socket); NCCL_IB_DISABLE=1 is set"


def test_the_way_by_nccls_lines_explains_the_exchange(make_run: MakeRun) -> None:
    """Where the exchange is seen, its time decides; the host of a GPU does not see it."""
    slow, quick = ([rank(each, {"forward": own}, 0.1, 0.25) for each in range(4)] for own in (0.04, 0.095))
    found = cause(make_run(slow, transfer_s=0.05, transport=(TCP,)))
    assert (found.kind, found.sentence.partition("step; ")[2][: len(TCP)]) == ("network", TCP)
    assert cause(make_run(quick, transfer_s=0.002, transport=(TCP,))).kind == "compute"
    assert str(cause(make_run(gpus=4, transport=(TCP,)))) == f"network: {TCP}"
    assert cause(make_run(gpus=4)).kind == "not known"
