"""Findings next to a verdict: steps of several kinds, a drift, and rates that no GPU can have."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.system import load_system, published_tflops
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Claim
from pytest_llmbench.core.record.records import Metric
from pytest_llmbench.core.record.series import OwnSteps, RankInfo, RankTimes, RunTimes, Step, StepSeries
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.findings import findings, unconfirmed, unsteady
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.sanity import Evidence, first_problem, implausible
from pytest_llmbench.judging.sanity.evidence import Origin
from pytest_llmbench.judging.sanity.rates import clock_share
from pytest_llmbench.session.ending import conclude_logs
from tests.unit.judging.conftest import small

DEVICE = "NVIDIA H200"
ELSEWHERE = load_system("elsewhere", [shipped("systems")])
SECONDS = 10.0
MACHINE = Machine(system="elsewhere", device=DEVICE, gpus=2, nodes=1, scale="full")


def rank(number: int, **changes: Any) -> RankInfo:
    values: dict[str, Any] = {
        "rank": number, "host": "n1", "pid": number + 1, "local_rank": number, "device": DEVICE, "versions": {},
        "ended": True, "matmul_flops_per_s": 7e14, "gpu": f"GPU-{number}",
    }  # fmt: skip
    return RankInfo(**(values | changes))


def watched(number: int, **changes: Any) -> GpuTelemetry:
    return GpuTelemetry(
        rank=number, gpu=f"GPU-{number}", samples=40, **({"sm_clock_mhz": 1500, "throttled": 0} | changes)
    )


def run(**changes: Any) -> Evidence:
    """A run of twelve steps of ten seconds each on two GPUs."""
    recipe = small(precision="bf16")
    steps = tuple(
        Step(step=n, seconds=SECONDS, tokens=recipe.tokens_per_step, samples=8, loss=5 - n / 12, grad_norm=1, ranks=2)
        for n in range(1, 13)
    )
    series: dict[str, Any] = {
        "ranks": (rank(0), rank(1)), "steps": steps, "telemetry": (watched(0), watched(1)), "times": None,
    }  # fmt: skip
    for name in set(changes) & set(series):
        series[name] = changes.pop(name)
    plain = Evidence(
        recipe=recipe, topology=Topology(nodes=1, gpus_per_node=2), series=StepSeries(**series), hosts=("n1",),
        wall_s=140.0, gpu=None, peak_tflops=(989.4, 989.4), origin=Origin(launched=1000.0),
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def waiting(seconds: float) -> RunTimes:
    """Ranks that all wait so long in each step, the last to arrive included."""
    ranks = tuple(RankTimes(rank=n, seconds=SECONDS, phases={"sync": seconds}) for n in (0, 1))
    return RunTimes(steps=12, ranks=ranks, transfer_s=seconds)


def begun(after_s: float, **changes: Any) -> RankInfo:
    """A rank whose first step began so long after the launch, by the clock of its host."""
    began = 1000.0 + after_s
    steps = OwnSteps(
        count=12, began=began, ended=began + 120, seconds=120.0, unlike_times=None, unlike_clock=None, durations="",
        losses="", quarters=(1.0,), still=1, flat=0,
    )  # fmt: skip
    return rank(changes.pop("rank", 0), steps=steps, **changes)


def test_a_run_in_good_order_has_no_finding() -> None:
    assert findings(run()) == ()
    assert first_problem(run()) is None


@pytest.mark.parametrize(("changes", "told"), [
    ({"telemetry": (watched(0), watched(1, throttled=3, reasons={"hardware slowdown": 3, "power cap": 40}))},
     "throttled in the judged steps: rank 1 on n1 (hardware slowdown in 3 of 40 samples)"),
    ({"telemetry": (watched(0), watched(1, sm_clock_mhz=750))}, "the ranks' clocks differ: rank 0 on n1 1500 MHz"),
    ({"ranks": (rank(0), rank(1, matmul_flops_per_s=5e14))}, "rates differ: rank 0 on n1 700 TFLOP/s"),
    ({"ranks": (rank(0, matmul_flops_per_s=4e14), rank(1, matmul_flops_per_s=4e14))},
     "less than 50 % of the published"),
    ({"wall_s": 240.0}, "50 % of the run (120 of 240 s) was outside of steps"),
    ({"wall_s": 240.0, "ranks": (begun(10), rank(1))}, "10 s of it before the first"),
    ({"wall_s": 240.0, "ranks": (begun(10).model_copy(update={"finished": 1230.0}), rank(1))}, "110 of 230 s"),
    ({"wall_s": 240.0, "ranks": (begun(115), rank(1))}, "115 s of it before the first"),
    ({"telemetry": tuple(watched(n, sm_clock_mhz=900, power_capped=40) for n in (0, 1))},
     "SM clocks below 60 % of that of the published peak: rank 0 on n1 900 MHz, at the power limit in 40 of 40"),
    ({"times": waiting(4.0)}, "every rank waits 4 s or more of each 10 s step for gradients of 0 MB"),
])  # fmt: skip
def test_each_is_said(changes: dict[str, Any], told: str) -> None:
    evidence = run(**changes)
    assert first_problem(evidence) is None
    assert told in "; ".join(findings(evidence))


@pytest.mark.parametrize("changes", [
    {"wall_s": 140.0},
    {"wall_s": 160.0, "ranks": (begun(38), rank(1))},  # a start of less than a minute
    {"wall_s": None},
    {"wall_s": 240.0, "recipe": small(precision="bf16").model_copy(update={"scale": "smoke"})},
    {"telemetry": (watched(0, power_capped=40), watched(1))},
    {"telemetry": (watched(0, power_capped=40, sm_clock_mhz=1290), watched(1, sm_clock_mhz=1300))},
    {"times": waiting(2.0)},
    {"wall_s": 140.0, "ranks": (begun(10, finished=1131.0), begun(210, finished=1331.0, rank=1, host="n2"))},
    {"wall_s": 140.0, "ranks": (begun(210, finished=1331.0), begun(210, finished=1331.0, rank=1))},
    {"ranks": (rank(0, matmul_flops_per_s=6.7e14), rank(1))},
    {
        "ranks": (rank(0, matmul_flops_per_s=5.1e13), rank(1, matmul_flops_per_s=5.1e13)),
        "peak_tflops": (66.9, 494.7),
    },
])  # fmt: skip
def test_what_is_usual_is_not(changes: dict[str, Any]) -> None:
    assert findings(run(**changes)) == ()


@pytest.mark.parametrize(("flops_per_s", "sane"), [(1.0e15, True), (1.2e15, False)])
def test_products_above_the_published_peak_are_implausible(flops_per_s: float, sane: bool) -> None:
    """A GPU may have a little more clock than its published peak is for, and not a fifth."""
    problem = first_problem(run(ranks=(rank(0, matmul_flops_per_s=flops_per_s), rank(1))))
    assert (problem is None) == sane
    assert sane or (problem is not None and "rank 0 on n1 measured 1200 TFLOP/s" in problem.message)


@pytest.mark.parametrize("scale", ["full", "smoke"])
@pytest.mark.parametrize(("seconds", "sane"), [(1e-3, True), (1e-9, False)])
def test_a_training_above_the_peak_is_implausible_without_a_system_file(scale: str, seconds: float, sane: bool) -> None:
    """The model of the GPU is enough, also where the MFU has no meaning as a statistic."""
    evidence = run()
    steps = tuple(step.model_copy(update={"seconds": seconds}) for step in evidence.series.steps)
    series = evidence.series.model_copy(update={"steps": steps})
    recipe = evidence.recipe.model_copy(update={"scale": scale})
    problem = conclude_logs(dataclasses.replace(evidence, series=series, recipe=recipe), ELSEWHERE, None, {}).problem
    assert (problem is None) == sane
    assert sane or (problem is not None and "an MFU of" in problem.message)


@pytest.mark.parametrize(("device", "precision", "peak"), [
    ("NVIDIA H200", "bf16", (989.4, 989.4)), ("NVIDIA H200", "fp32", (66.9, 494.7)),
    ("NVIDIA A100-SXM4-80GB", "fp16", (312, 312)), ("NVIDIA H200 NVL", "bf16", (835, 835)),
    ("NVIDIA H300", "bf16", None), ("cpu", "bf16", None),
])  # fmt: skip
def test_a_gpu_alone_gives_the_published_peak(device: str, precision: str, peak: tuple[float, float] | None) -> None:
    assert published_tflops(device, precision) == peak


def test_an_mfu_above_the_clock_of_its_gpus_is_implausible() -> None:
    """At half of its clock a GPU does at most half of its published FLOP/s."""
    mfu = {"mfu": Metric(value=57.0, unit="%", rule="")}
    assert clock_share(watched(0, sm_clock_mhz=915), "NVIDIA H100 80GB HBM3") == 0.5
    assert clock_share(watched(0), "NVIDIA H999") is None
    assert implausible(mfu, clocks=[0.8, None]) is None
    problem = implausible(mfu, clocks=[0.5, 0.5])
    assert problem is not None
    assert "an MFU of 57 % at 50 % of the SM clock" in problem.message


AT = [Step(step=n, seconds=1.0, at=1000.0 + n) for n in range(1, 31)]
MODEL = (Claim(name="layers", value=2, where="log:1"),)


@pytest.mark.parametrize(("series", "said"), [
    ({}, "no line gives the number of ranks, which is taken to be 2; no line describes the model"),
    ({"world_size": 2, "claims": MODEL}, ""),
    ({"world_size": 2, "claims": MODEL, "steps": AT}, ""),
    ({"world_size": 2, "claims": MODEL, "steps": AT[:2]}, "the duration of a step stands in one place"),
    ({"world_size": 2, "claims": MODEL, "steps": AT[:2], "timed_twice": True}, ""),
    ({"world_size": 2, "claims": MODEL, "steps": [Step(step=1, seconds=1.0, reported={"wps": 9.0})]}, ""),
    ({"world_size": 2, "claims": MODEL, "steps": [Step(step=1, seconds=1.0, reported={"tflops": 0.1})]},
     "the duration of a step stands in one place"),
])  # fmt: skip
def test_what_nothing_confirms_is_said(series: dict[str, Any], said: str) -> None:
    bare = dataclasses.replace(run(), kind="command", series=StepSeries(**series))
    assert "; ".join(unconfirmed(bare)).startswith(said)
    assert bool(unconfirmed(bare)) == bool(said)


WARM_UP, JUDGED = 5, 40


def noisy(scatter: float, seed: int = 1, count: int = JUDGED) -> list[float]:
    chance = random.Random(seed)
    return [1.0 + scatter * chance.gauss(0.0, 1.0) for _ in range(count)]


def judged_run(judged: Sequence[float], gpus_per_node: int = 8) -> Evidence:
    """A run whose warm-up is followed by steps of these durations."""
    recipe = small(steps=WARM_UP + len(judged), precision="bf16")
    seconds = [3.0] * WARM_UP + list(judged)
    steps = tuple(
        Step(step=number, seconds=each, tokens=recipe.tokens_per_step, samples=8, loss=5.0)
        for number, each in enumerate(seconds, start=1)
    )
    topology = Topology(nodes=1, gpus_per_node=gpus_per_node)
    return Evidence(
        recipe=recipe, topology=topology, series=StepSeries(steps=steps), hosts=("n1",), wall_s=None, gpu=None
    )


def changed(by: dict[int, float], scatter: float = 0.002) -> list[float]:
    """Good durations, of which some last other than a second; negative places count from the end."""
    seconds = noisy(scatter)
    for place, each in by.items():
        seconds[place] = each
    return seconds


@pytest.mark.parametrize(("seconds", "told"), [
    (changed({0: 2.0, 1: 1.8, 2: 1.5}), "slow steps among the judged ones (1.77 times the median of "),
    (changed({11: 3.0, 23: 3.1, 35: 2.9}), "17, 29, 41: a short warm-up, an evaluation, a checkpoint or a stall?"),
    (changed({-1: 2.0, -2: 2.0, -3: 2.0, -4: 2.0}), "slow steps among the judged ones (2 times the median of "),
    ([1.0 + 0.002 * i for i in range(JUDGED)], "drift by +7.7 % from the first to the last"),
    ([x + 0.001 * i for i, x in enumerate(noisy(0.002))], "the judged steps drift by +"),
    ([x - 0.001 * i for i, x in enumerate(noisy(0.002))], "the judged steps drift by -"),
], ids=["warm-up", "evaluation", "end", "line", "slower", "faster"])  # fmt: skip
def test_steps_of_several_kinds_are_told(seconds: list[float], told: str) -> None:
    (finding,) = unsteady(judged_run(seconds))
    assert told in finding
    assert list(unsteady(judged_run(seconds, gpus_per_node=0))) == []


@given(scatter=st.floats(0.0, 0.01), seed=st.integers(0, 10_000))
def test_steady_steps_have_no_finding(scatter: float, seed: int) -> None:
    assert [told for told in unsteady(judged_run(noisy(scatter, seed))) if "drift" not in told] == []


def test_a_drift_is_seldom_seen_where_there_is_none() -> None:
    assert sum(bool(list(unsteady(judged_run(noisy(0.004, seed))))) for seed in range(500)) <= 5


@given(st.lists(st.floats(1e-6, 1e6), min_size=0, max_size=60))
def test_any_durations_can_be_looked_at(seconds: list[float]) -> None:
    if seconds:
        evidence = judged_run(seconds)
        list(unsteady(evidence))
