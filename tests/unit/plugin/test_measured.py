"""A comparison is a number's: it touches nothing, keeps its type in other units, and lets `max` compare numbers."""

import sys
from pathlib import Path
from types import FrameType

import pytest

import pytest_llmbench
from pytest_llmbench.core.errors import InconclusiveError, RunError, UnitError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.judging.interval.decide import compare_metrics
from pytest_llmbench.plugin.verdict.compare import Number
from pytest_llmbench.plugin.verdict.explain import _distance
from pytest_llmbench.plugin.verdict.measured import Comparison, Measured, explain_comparison
from pytest_llmbench.plugin.verdict.run import Run
from tests.support.shipped import shipped_recipes
from tests.unit.plugin.test_repeated import record, several

PACKAGE = Path(pytest_llmbench.__file__).parent


def test_no_comparison_reaches_the_cluster_or_starts_a_job() -> None:
    """A comparison reads records alone, also where more runs may follow an undecided one."""
    files: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        files.add(frame.f_code.co_filename)

    runs = [Run(record(1), may_repeat=True), several()]
    verdicts: list[bool | None] = []
    sys.setprofile(note)
    try:
        for run in runs:
            for bound in ("900 words/s", "999.9 words/s", "1100 words/s"):
                for made in (run.throughput >= Quantity(bound), run.throughput.to("tokens/s") < Quantity(bound)):
                    try:
                        verdicts.append(bool(made))
                    except InconclusiveError:
                        verdicts.append(None)
                explain_comparison(">=", run.throughput, Quantity(bound))
            max(run.throughput, run.throughput)
    finally:
        sys.setprofile(None)
    assert set(verdicts) == {True, False, None}
    paths = {Path(file) for file in files}
    reached = {str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE)}
    reached |= {path.name for path in paths} & {"subprocess.py", "socket.py", "threading.py"}
    assert "plugin/verdict/compare.py" in reached
    inside = {path for path in reached if path.startswith(("cluster/", "plugin/", "session/")) or "/" not in path}
    assert inside <= {f"plugin/verdict/{name}.py" for name in ("compare", "explain", "measured", "run")} | {
        "session/ending.py"
    }


def test_nothing_is_judged_before_it_is_asked() -> None:
    run = several()
    made = run.throughput >= Quantity("900 words/s")
    assert isinstance(made, Comparison)
    assert (made.asked, run.comparisons.last) == (False, None)
    assert made.place.startswith("test_measured.py:")
    assert repr(made).startswith("throughput 999")
    assert bool(made)
    assert made.asked
    assert run.comparisons.last is made.judged
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


def test_another_unit_keeps_the_run_and_the_interval() -> None:
    measured = several().step_time
    converted = measured.to("ms")
    assert isinstance(converted, Measured)
    assert converted.value == pytest.approx(1000 * measured.value)
    assert converted.comparisons is measured.comparisons
    assert converted.record is measured.record
    for name in ("value", "low", "high", "amount"):
        assert getattr(converted.metric, name) == pytest.approx(1000 * getattr(measured.metric, name))
    assert [part.metric.unit for part in converted.number.parts] == ["ms"] * 3
    assert measured.to("s") is measured
    with pytest.raises(UnitError, match="is for a"):
        measured.to("words/s")


@pytest.mark.parametrize("unit", ["ms", "s", "min", "us"])
@pytest.mark.parametrize("share", [0.9, 0.9999, 1.0001, 1.1])
def test_the_verdict_is_the_same_in_each_unit(unit: str, share: float) -> None:
    def end(measured: Measured, bound: Quantity) -> bool | None:
        try:
            return bool(measured <= bound)
        except InconclusiveError:
            return None

    run = several()
    bound = Quantity(run.step_time.value * share, "s")
    assert end(run.step_time.to(unit), bound.to(unit)) is end(run.step_time, bound)


def test_numbers_are_ordered_by_their_values() -> None:
    runs = [Run(record(number, level)) for number, level in ((1, 1.0), (2, 1.0001), (3, 0.9999))]
    numbers = [run.throughput for run in runs]
    by_value = sorted(number.value for number in numbers)
    assert [number.value for number in sorted(numbers)] == by_value
    assert [number.value for number in sorted(numbers, reverse=True)] == by_value[::-1]
    assert (min(numbers).value, max(numbers).value, max(*numbers).value) == (by_value[0], by_value[-1], by_value[-1])
    assert max(numbers, key=lambda number: number) is max(numbers)
    numbers.sort()
    assert [list(run.comparisons) for run in runs] == [[], [], []]
    with pytest.raises(InconclusiveError, match="overlap"):
        assert numbers[0] < numbers[1]
    with pytest.raises(UnitError):
        max(runs[0].throughput, runs[0].step_time)


def test_a_number_of_a_test_that_is_over() -> None:
    run = several()
    run.comparisons.closed = True
    with pytest.raises(RunError, match=r"test_measured.py:\d+: throughput 999"):
        _ = run.throughput >= Quantity("1 words/s")


def rate(low: float | None, high: float | None) -> Metric:
    return Metric(value=100.0, unit="words/s", rule="r", sense="rate", amount=1.0, low=low, high=high)


@pytest.mark.parametrize(("one", "other", "holds", "why"), [
    ((90.0, None), (80.0, 85.0), True, ""), ((90.0, None), (80.0, None), None, "overlap"),
    ((90.0, None), (80.0, 95.0), None, "overlap"), ((60.0, 70.0), (80.0, None), False, ""),
    ((None, None), (80.0, 95.0), None, "Fewer than 4 of its judged steps"),
    ((90.0, 99.0), (None, None), None, "the other run has too few"),
])  # fmt: skip
def test_an_interval_that_is_open_at_an_end(
    one: tuple[float | None, float | None], other: tuple[float | None, float | None], holds: bool | None, why: str
) -> None:
    """Steps that scatter much leave a rate without an upper end: that is another reason than too few steps."""
    decision = compare_metrics(rate(*one), ">=", rate(*other))
    assert decision.holds is holds
    assert why in decision.why


@pytest.mark.parametrize(
    ("rates", "said"),
    [((700.0, 600.0), "slow GPU: rank 1 on n1 has matrix products of 600 TFLOP/s, 14 % less"), ((700.0, 699.0), "")],
)
def test_the_slow_gpu_is_named(rates: tuple[float, ...], said: str) -> None:
    """Right below what was missed, where the ranks measured enough to tell."""
    ranks = tuple(
        RankInfo(
            rank=rank, host=f"n{rank}", pid=7, local_rank=0, device="NVIDIA H200", versions={},
            matmul_flops_per_s=1e12 * rate,
        )
        for rank, rate in enumerate(rates)
    )  # fmt: skip
    metric = Metric(value=150_000.0, unit="words/s", rule="words per second")
    record = RunRecord(
        session="s", key="opt125m", token="t", recipe=shipped_recipes()["opt125m"], system="any",
        cluster="slurm", allocation="run", nodes=2, ranks=2, gpus=2, folder="/runs/opt125m", hosts=("n0", "n1"),
        rank_info=ranks, metrics={"throughput": metric},
    )  # fmt: skip
    measured = Measured(Number(statistic="throughput", metric=metric, record=record))
    bound = Quantity("200000 words/s")
    assert not measured >= bound
    lines = explain_comparison(">=", measured, bound)
    assert lines is not None
    assert lines[0].startswith("measured 150,000 words/s is 25 % below the threshold 200,000 words/s")
    slow = [line for line in lines if line.startswith("slow GPU")]
    assert "".join(slow).startswith(said)
    assert bool(slow) == bool(said)


@pytest.mark.parametrize(("rate", "said"), [
    (3_459, "only 1.7 % of"), (10_050, "only 5 % of"), (90_000, "only 45 % of"), (110_000, "45 % below"),
])  # fmt: skip
def test_a_laptop_is_told_its_share_of_the_threshold(rate: float, said: str) -> None:
    """README shows such a line; on a machine that is twenty times faster its words stay the same."""
    assert _distance(Quantity(f"{rate} words/s"), Quantity("200000 words/s"), "below") == said
