"""Several runs as one, and groups of nodes that are compared."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.errors import InconclusiveError, RunError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.series import RankInfo, Step
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.plugin.verdict.compare import JudgedComparison, find_copy
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups
from pytest_llmbench.plugin.verdict.measured import explain_comparison
from pytest_llmbench.plugin.verdict.run import Run
from tests.conftest import known
from tests.support.shipped import shipped_recipes

RECIPE = shipped_recipes()["opt125m"]
STEPS, LEVELS = 200, (1.0, 1.002, 0.999)


def record(number: int, level: float = 1.0, *, steps: int = STEPS, memory_gib: float = 10.0) -> RunRecord:
    """One of several runs, of 1000 tokens in about a second."""
    chance = random.Random(number)
    series = [
        Step(
            step=i, seconds=level * (1 + 0.001 * chance.gauss(0, 1)), tokens=1000, samples=1, loss=3.0 - 0.001 * i,
            peak_memory_bytes=round(memory_gib * 2**30),
        )
        for i in range(1, steps + 1)
    ]  # fmt: skip
    judged = judged_steps(RECIPE, series)
    made = Measurement(
        recipe=RECIPE, steps=series, judged=judged, gpus=0, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    key = "opt125m" if number == 1 else f"opt125m-repeat{number}"
    return RunRecord(
        session="s", key=key, repeat=number, token="t", recipe=RECIPE, system="any", cluster="local",
        allocation="session", nodes=1, ranks=1, gpus=0, folder=f"/runs/{key}", metrics=measure(made),
        steps=tuple(series), steady=made.steady,
    )  # fmt: skip


def several(*records: RunRecord) -> Run:
    return Run(*(records or [record(i, level) for i, level in enumerate(LEVELS, start=1)]))


def last(run: Run) -> JudgedComparison:
    assert run.comparisons.last is not None
    return run.comparisons.last


def test_three_runs_decide_what_one_leaves_open() -> None:
    """The interval of the system becomes narrower, and the number is the mean."""
    bound = Quantity("992 words/s")
    with pytest.raises(InconclusiveError, match=r"about \d runs would decide; pass `--llmbench-repeat \d`"):
        assert Run(record(1)).throughput >= bound
    runs = several()
    measured = runs.throughput
    assert measured >= bound
    assert measured.value == pytest.approx(1000 / (sum(LEVELS) / 3), rel=1e-3)
    decision = known(last(runs).decision)
    assert (decision.claim, last(runs).decisive) == ("system", measured.number)
    assert not several().step_time > Quantity("1.1 s")


def test_what_the_message_asks_for_decides() -> None:
    with pytest.raises(InconclusiveError) as told:
        assert Run(record(1)).throughput >= Quantity("994 words/s")
    count = int(str(told.value).partition("--llmbench-repeat ")[2].partition("`")[0])
    assert 2 < count < 10
    assert several(*(record(i) for i in range(1, count + 1))).throughput >= Quantity("994 words/s")


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_runs_that_differ_decide_nothing(slow: int) -> None:
    runs = several(*(record(i, 1.03 if i == slow else 1.0) for i in (1, 2, 3)))
    with pytest.raises(InconclusiveError, match="of 3 runs does not decide"):
        assert runs.throughput >= Quantity("975 words/s")


@pytest.mark.parametrize("large", [1, 2, 3])
def test_another_statistic_has_to_hold_in_each_run(large: int) -> None:
    runs = several(*(record(i, memory_gib=22.0 if i == large else 10.0) for i in (1, 2, 3)))
    bound = Quantity("20 GiB")
    measured = runs.peak_memory
    assert not measured <= bound
    assert last(runs).decisive.metric.value == 22.0
    lines = known(explain_comparison("<=", measured, bound))
    key = runs.records[large - 1].key
    assert lines[0] == f"measured 22 GiB in run {key} is 10 % above the threshold 20 GiB"
    assert f"run record: /runs/{key}/record.json" in lines
    assert runs.peak_memory <= Quantity("23 GiB")


def reference(bound: str, claim: str) -> Reference:
    return Reference.model_validate(
        {
            "name": "acceptance", "statistic": "throughput", "at_least": bound, "claim": claim, "why": "w",
            "source": "s", "date": "2026-01-01", "applies_to": {"system": "any"},
        }
    )  # fmt: skip


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_a_claim_about_a_run_is_about_each_of_them(slow: int) -> None:
    """A slow one is a miss beside two that are fast enough, and one that does not decide is not a pass."""
    runs = several(*(record(i, 1.02 if i == slow else 1.0) for i in (1, 2, 3)))
    measured = runs.throughput
    assert measured not in reference("990 words/s", "run")
    assert last(runs).decisive.record.repeat == slow
    decision = known(last(runs).decision)
    assert decision.alpha == pytest.approx(0.01 / 3)
    assert runs.throughput in reference("970 words/s", "run")
    with pytest.raises(InconclusiveError, match=f"run {runs.records[slow - 1].key}: throughput"):
        assert runs.throughput in reference(f"{runs.records[slow - 1].metrics['throughput'].value} words/s", "run")


def test_a_run_without_the_number_leaves_none() -> None:
    without = record(2).model_copy(update={"metrics": {}})
    with pytest.raises(RunError, match="not available for run opt125m-repeat2"):
        _ = several(record(1), without).throughput


@pytest.mark.parametrize(("bound", "holds"), [("9 %", True), ("31 %", False), ("15 %", None)])
def test_a_threshold_within_a_doubtful_ceiling_is_not_decided(bound: str, holds: bool | None) -> None:
    """The share is between 10 and 30 %; the words/s of the same run are judged."""
    rank = RankInfo(rank=0, host="n0", pid=1, local_rank=0, device="cpu", versions={}, matmul_rates=(2e11, 6e10, 7e10))
    one = record(1)
    share = Metric(value=30.0, low=10.0, high=30.0, unit="%", rule="a share")
    run = Run(one.model_copy(update={"rank_info": (rank,), "metrics": {**one.metrics, "matmul_fraction": share}}))
    if holds is None:
        with pytest.raises(InconclusiveError, match=r"it is between 10 % and 30 %; the ranks .* 200, 60, 70 GFLOP/s"):
            assert run.matmul_fraction >= Quantity(bound)
    else:
        assert (run.matmul_fraction >= Quantity(bound)) == holds
    assert run.throughput >= Quantity("900 words/s")


def test_a_short_run_is_not_made_up_for() -> None:
    with pytest.raises(InconclusiveError):
        assert several(record(1), record(2), record(3, steps=12)).throughput >= Quantity("900 words/s")
    unread = record(3).model_copy(update={"steady": None})
    with pytest.raises(InconclusiveError):
        assert several(record(1), record(2), unread).throughput >= Quantity("900 words/s")


def test_a_run_is_not_counted_twice() -> None:
    copy = record(1).model_copy(update={"key": "opt125m-repeat2"})
    assert "runs opt125m and opt125m-repeat2 cannot be judged together" in (find_copy([record(1), copy]) or "")
    assert find_copy([record(1), record(2)]) is None
    untimed = [each.model_copy(update={"steps": ()}) for each in (record(1), copy)]
    assert find_copy(untimed) is None


def look(levels: Sequence[float], bound: Quantity) -> tuple[Run, bool | None]:
    """Judge a run of the first level, and twice as many runs each time that these decide nothing."""
    records = [record(1, levels[0])]
    while True:
        run = Run(*records, may_repeat=True)
        try:
            return run, bool(run.throughput >= bound)
        except InconclusiveError:
            count = len(records)
            if 2 * count > len(levels):
                return run, None
            more = [record(n + 1, levels[n]) for n in range(count, 2 * count)]
            records += [each.model_copy(update={"look": run.look + 1}) for each in more]


def test_each_look_has_half_of_the_alpha_of_the_one_before() -> None:
    run, holds = look([1.0, 1.0, 1.0, 1.0], Quantity("992 words/s"))
    assert (holds, run.look, len(run.records)) == (True, 2, 4)
    decision = known(last(run).decision)
    assert decision.alpha == run.step_time.number.alpha == 0.01 / 8
    assert len(last(run).number.parts) == 4
    assert look([1.0], Quantity("900 words/s"))[0].look == 0


def test_many_looks_are_not_wrong_more_often() -> None:
    """Systems 0.5 % slower than the threshold pass in far less than 1 % of cases, and faster ones do not fail."""
    chance, wrong, decided = random.Random(5), 0, 0
    for _ in range(60):
        slower = chance.random() < 0.5
        levels = [1.0 + 0.003 * chance.gauss(0.0, 1.0) for _ in range(4)]
        _, passed = look(levels, Quantity(1000.0 / (0.993 if slower else 1.007), "words/s"))
        if passed is not None:
            decided, wrong = decided + 1, wrong + (passed == slower)
    assert decided > 20
    assert wrong <= 1


def test_a_miss_is_told_with_its_interval() -> None:
    measured, bound = several().throughput, Quantity("1100 words/s")
    assert not measured >= bound
    lines = known(explain_comparison(">=", measured, bound))
    assert lines[0].startswith("measured 999.")
    assert " words/s (between 99" in lines[0]
    assert lines[0].endswith("below the threshold 1,100 words/s")
    assert any(line.startswith("runs: opt125m ") and "opt125m-repeat3 " in line for line in lines)


# A real run on one H200.
REAL = RunRecord.read(Path(__file__).parents[2] / "data" / "h200" / "runs" / "opt125m" / "record.json")


def group_record(group: int, slower: Callable[[int], float] = lambda _step: 1.0, **changes: Any) -> RunRecord:
    """A group's run of 100 steps, each slower by a factor."""
    rng = random.Random(group)
    steps = [
        REAL.steps[0].model_copy(update={"step": i, "seconds": slower(i) * (1.15 + 0.001 * rng.gauss(0, 1))})
        for i in range(1, 101)
    ]
    return REAL.model_copy(update={"key": f"g{group}", "hosts": (f"n{group}",), "steps": tuple(steps), **changes})


def compared(*records: RunRecord) -> ComparedGroups:
    runs = [RunSpec(key=each.key, recipe=each.recipe, group=i) for i, each in enumerate(records, start=1)]
    return compare_groups(runs, {each.key: each for each in records}, None)


def verdicts(groups: ComparedGroups) -> dict[str, str]:
    return {str(row["hosts"]): str(row["verdict"]) for row in groups.rows}


def test_a_group_that_still_became_faster_is_not_decided() -> None:
    found = compared(group_record(1), group_record(2), group_record(3, lambda step: 3.0 - 0.02 * step))
    assert verdicts(found) == {"n1": "PASS", "n2": "PASS", "n3": "INCONCLUSIVE"}
    assert "n3 (g3): too few of its steps are steady" in found.rows[2]["reason"]


@pytest.mark.parametrize("changes", [{"nodes": 2}, {"gpus": 8}, {"device": "NVIDIA H100"}])
def test_runs_of_other_shapes_are_not_compared(changes: dict[str, Any]) -> None:
    found = compared(group_record(1), group_record(2), group_record(3, **changes))
    assert not found.rows
    assert [*found.lines] == ["GROUPS NOT COMPARED: n1 (g1), n2 (g2), n3 (g3): they differ in nodes, GPUs or batch"]


def test_processors_are_not_compared_unless_asked() -> None:
    smoke = REAL.recipe.model_copy(update={"scale": "smoke"})
    for changes in ({"gpus": 0, "device": "cpu"}, {"recipe": smoke}):
        (line,) = compared(group_record(1, **changes), group_record(2, **changes)).lines
        assert "unless you set llmbench_group_tolerance" in line


def test_a_session_without_groups_has_nothing_to_tell() -> None:
    found = compare_groups([RunSpec(key="g1", recipe=REAL.recipe)], {"g1": group_record(1)}, None)
    assert not found.rows
    assert not [*found.lines]
