"""Runs compared with earlier ones: what became slower is a FAIL, and nothing else is accused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history.planted import repeat
from benchmarks.history.simulated import REAL, Fleet, keep
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.history.baselines import check_wanted, compare_with_baseline
from pytest_llmbench.history.compare import Change, Compared, compare_sessions, measure_change, run_of_record
from pytest_llmbench.history.database import History, open_history
from pytest_llmbench.history.queries import runs_of
from pytest_llmbench.history.rows import MetricRow
from pytest_llmbench.history.scatter import Scatter, shared_scatter
from pytest_llmbench.history.wanted import Wanted
from tests.support.postgresql import postgresql


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path / "history.db")


def row(
    value: float, better: Any = "higher", half: float = 0.003, unit: str = "words/s", steps: int | None = None,
    scatter: float | None = None,
) -> MetricRow:  # fmt: skip
    return MetricRow(
        name="x", value=value, unit=unit, low=value * (1 - half), high=value * (1 + half), better=better, steps=steps,
        scatter=scatter,
    )  # fmt: skip


def change(
    before: Sequence[MetricRow], *after: MetricRow, past: Sequence[MetricRow] = (), shared: Scatter | None = None,
    usual: BetweenRuns | None = USUAL_BETWEEN_RUNS,
) -> Change:  # fmt: skip
    return measure_change(Compared(name="x", before=before, after=after, past=past, usual=usual), shared=shared)


def regressed_of(change: Change) -> bool | None:
    return {"FAIL": True, "PASS": False, "INCONCLUSIVE": None}[change.verdict]


def one(history: History, record: RunRecord, wanted: str = "last") -> Compared:
    (told,) = compare_with_baseline(history, record.session, [[record]], Wanted.parse(wanted))
    return told


def test_a_planted_regression_alone_is_found(history: History) -> None:
    """Of 20 recipes one became 2 % slower: it fails and all others pass, in each of a few repeats."""
    for number in range(2):
        wanted = Wanted(kind="last", count=10)
        victim, verdicts = repeat(history, f"t{number}", earlier=10, slower=0.02, wanted=wanted)
        assert {name for name, verdict in verdicts.items() if verdict != "PASS"} == {victim}
        assert verdicts[victim] == "FAIL"


def test_a_planted_regression_alone_is_found_by_postgresql() -> None:
    with postgresql() as url:
        history = open_history(url)
        victim, verdicts = repeat(history, "p", earlier=10, slower=0.02, wanted=Wanted(kind="last", count=10))
        assert {name for name, verdict in verdicts.items() if verdict != "PASS"} == {victim}
        fleet = Fleet("q", 1)
        keep(history, fleet.session(0), "base")
        assert keep(history, fleet.session(0)).refused  # of other steps
        assert one(history, fleet.session(1)[fleet.recipes[0]], "tag:base").verdict == "PASS"


def test_each_baseline_means_its_runs(history: History) -> None:
    """The last session, the best one, those of a tag, and those of a commit."""
    fleet = Fleet("b", 1, between=0.0005)
    speeds = {0: 0.0, 1: -0.05, 2: 0.05}
    for day, slower in speeds.items():
        records = fleet.session(day, {fleet.recipes[0]: slower})
        changed = {"provenance": {"git_commit": "abc123" + str(day) * 34}}
        keep(history, {k: r.model_copy(update=changed) for k, r in records.items()}, f"day{day}")
    new = fleet.session(3)[fleet.recipes[0]]
    chosen = {
        wanted: one(history, new, wanted).sessions
        for wanted in ("last", "last:2", "best", "tag:day0", "commit:abc1231111")
    }
    days = {"last": (2,), "last:2": (1, 2), "best": (1,), "tag:day0": (0,), "commit:abc1231111": (1,)}
    assert chosen == {wanted: tuple(fleet.session_id(day) for day in of) for wanted, of in days.items()}


@pytest.mark.parametrize(
    ("speeds", "wanted"),
    [({5: 0.1}, "last:20"), ({9: 0.1}, "last"), ({9: 0.1}, "last:20"), ({5: 0.05, 6: 0.05}, "last:20"),
     (dict.fromkeys(range(5), 0.05), "last:20")],
    ids=["a bad day", "yesterday", "yesterday of 20", "bad days", "slower until five days ago"],
)  # fmt: skip
def test_other_days_neither_hide_a_loss_nor_make_one(history: History, speeds: dict[int, float], wanted: str) -> None:
    """The baseline begins at the last change and leaves out a bad day: 3 % less is a FAIL, the same speed a PASS."""
    fleet = Fleet("d", 1)
    (name,) = fleet.recipes
    for day in range(10):
        keep(history, fleet.session(day, {name: speeds.get(day, 0.0)}))
    ends = [one(history, fleet.session(10, {name: slower})[name], wanted).verdict for slower in (0.0, 0.03)]
    assert ends == ["PASS", "FAIL"]


def test_no_baseline_is_never_a_pass(history: History) -> None:
    """A new recipe is skipped; one that was changed, or ran on another machine, is not decided."""
    fleet = Fleet("n", 1)
    old, new = (fleet.session(day)[fleet.recipes[0]] for day in (0, 1))
    assert one(history, new).verdict == "SKIP"
    assert "has no earlier run of n-00" in one(history, new).reason
    keep(history, {"n": old})
    longer = new.recipe.model_copy(update={"sequence_length": 4096})
    for changes, words in (
        ({"nodes": 2}, "nodes 1, then 2"), ({"device": "NVIDIA H100"}, "hardware NVIDIA H200, then NVIDIA H100"),
        ({"recipe": longer}, "the recipe itself was changed"),
    ):  # fmt: skip
        told = one(history, new.model_copy(update=changes))
        assert told.verdict == "INCONCLUSIVE"
        assert words in told.reason
    assert one(history, new).verdict == "PASS"


def test_a_baseline_in_another_unit_is_not_decided(history: History) -> None:
    """Such as of an engine whose statistic was another one in its earlier version."""
    old, new = (fleet.session(day)[fleet.recipes[0]] for fleet in [Fleet("o", 1)] for day in (0, 1))
    metric = old.metrics["throughput"].model_copy(update={"unit": "samples/s"})
    keep(history, {"o": old.model_copy(update={"metrics": {**old.metrics, "throughput": metric}})})
    told = one(history, new)
    assert told.verdict == "INCONCLUSIVE"
    assert "numbers in samples/s and words/s cannot be compared" in told.reason


def test_what_is_no_measurement_is_not_compared(history: History) -> None:
    """A simulated run is neither compared nor a baseline, nor is a run its own one, read again."""
    fleet = Fleet("m", 1)
    old, new = (fleet.session(day)[fleet.recipes[0]] for day in (0, 1))
    keep(history, {"m": old.model_copy(update={"simulated": "slow@5"})})
    assert one(history, new).verdict == "SKIP"
    assert one(history, new.model_copy(update={"simulated": "slow@5"})).reason.startswith("simulated")
    keep(history, {"m": new})
    assert one(history, new.model_copy(update={"session": "another"})).verdict == "SKIP"


def test_runs_on_processors_wait_for_a_history(history: History) -> None:
    """How much they scatter is known of themselves alone, from three runs on."""
    fleet = Fleet("c", 1, between=0.002)
    for day in range(3):
        records = {k: r.model_copy(update={"gpus": 0, "device": "cpu"}) for k, r in fleet.session(day).items()}
        assert one(history, records[fleet.recipes[0]]).verdict == ("SKIP" if day == 0 else "INCONCLUSIVE")
        keep(history, records)
    slower = fleet.session(3, {fleet.recipes[0]: 0.2})[fleet.recipes[0]]
    assert one(history, slower.model_copy(update={"gpus": 0, "device": "cpu"})).verdict == "FAIL"


def test_an_unknown_tag_or_commit_is_said_before_the_session(history: History) -> None:
    keep(history, Fleet("u", 1).session(0), "v1")
    check_wanted(history, Wanted.parse("tag:v1"))
    with pytest.raises(ConfigError, match="unknown tag of the history 'v2'; legal: v1"):
        check_wanted(history, Wanted.parse("tag:v2"))
    with pytest.raises(ConfigError, match="no run of that commit"):
        check_wanted(history, Wanted.parse("commit:1234567"))


@pytest.mark.parametrize("text", ["", "lst", "last:0", "last:x", "tag:", "commit:12", "commit:xyzxyzx", "best:2"])
def test_what_is_no_baseline_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="must be last, last:N, best, tag:NAME, or commit:SHA"):
        Wanted.parse(text)


@pytest.mark.parametrize(
    ("better", "after", "regressed", "improved"),
    [("higher", 95.0, True, False), ("higher", 105.0, False, True), ("lower", 105.0, True, False),
     ("lower", 95.0, False, True), ("higher", 100.2, False, False), (None, 50.0, None, False)],
)  # fmt: skip
def test_the_direction_decides(better: Any, after: float, regressed: bool | None, improved: bool) -> None:
    """More words are better, more seconds are worse, and without a direction nothing is either."""
    told = change([row(100.0, better)], row(after, better))
    assert (regressed_of(told), told.improved) == (regressed, improved)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_no_pass(number: float) -> None:
    """A statistic of a package that is not installed may have such a number, or such an end of its interval."""
    with pytest.raises(ValueError, match="is not a number"):
        change([row(100.0)], row(number))
    real = RunRecord.read(REAL)
    throughput = real.metrics["throughput"]
    odd = real.model_copy(update={"metrics": {"throughput": throughput, "odd": throughput}})
    none = {**odd.metrics, "odd": throughput.model_copy(update={"value": number})}
    lines = compare_sessions([run_of_record(odd)], [run_of_record(odd.model_copy(update={"metrics": none}))])
    assert {line.metric: line.verdict for line in lines}["odd"] == "ERROR"
    assert regressed_of(change([row(100.0)], replace(row(100.0), low=number))) is None


def test_a_wide_interval_decides_nothing() -> None:
    assert regressed_of(change([row(100.0, half=0.1)], row(100.0, half=0.1))) is None
    wide = change([row(5.0, "lower", 0.9)], row(5.2, "lower", 2.0))
    assert wide.low is not None
    assert wide.low > -1.0


@pytest.mark.parametrize(("after", "steps", "past", "regressed"), [
    (95.0, 49, 0, None), (85.0, 49, 0, True), (95.0, 50, 0, True), (95.0, None, 0, True), (95.0, 49, 3, True),
])  # fmt: skip
def test_few_steps_may_be_on_two_levels(after: float, steps: int | None, past: int, regressed: bool | None) -> None:
    """A run of 20 steps may be on one of two levels throughout; a history has shown how such runs differ."""
    told = change([row(100.0, steps=49)], row(after, steps=steps), past=[row(100.0), row(100.1), row(99.9)][:past])
    assert regressed_of(told) is regressed
    assert (regressed is None) == ("two levels of speed" in told.reason and after > 90.0)


def test_one_wide_interval_of_the_past_hides_no_loss() -> None:
    past = [100.0 + 0.1 * (i % 5) for i in range(20)]
    before = [row(value, half=0.2 if i == 7 else 0.003) for i, value in enumerate(past)]
    assert regressed_of(change(before, row(98.2), past=before))


@pytest.mark.parametrize(("after", "scatter", "regressed"), [
    (98.0, 0.0101, True), (100.0, 0.0099, False), (98.0, 0.03, None), (98.0, None, None),
])  # fmt: skip
def test_an_interval_wide_by_chance_hides_no_loss(after: float, scatter: float | None, regressed: bool | None) -> None:
    """One run of 300 looks as if its steps had a long memory; where their mean is that uncertain, they scatter more."""
    past = [100.0 + 0.1 * (i % 5) for i in range(20)]
    before = [row(value, scatter=0.0097 + 0.0001 * (i % 6)) for i, value in enumerate(past)]
    new = row(after, half=0.09, scatter=scatter)
    assert regressed_of(change(before, new, past=before)) is regressed
    # The same of the baseline, where that is the last run.
    last = row(200.0 - after, half=0.09, scatter=scatter)
    assert regressed_of(change([last], row(99.0 if after < 100 else 100.0, scatter=0.0101), past=before)) is regressed


def test_a_change_of_the_past_is_no_scatter() -> None:
    """Earlier runs that stepped once are as close to each other as before and after the step."""
    past = [100.0 + 0.1 * (i % 3) for i in range(15)] + [90.0 + 0.1 * (i % 3) for i in range(15)]
    told = change([row(90.1)], row(88.0), past=[*map(row, past)])
    assert told.deviation is not None
    assert told.deviation < 0.003
    assert regressed_of(told)


@pytest.mark.parametrize("usual", [USUAL_BETWEEN_RUNS, None])
def test_copies_of_one_run_make_no_number_certain(usual: BetweenRuns | None) -> None:
    copies = Scatter(1e-12, 9.0)
    alike = [row(100.0)] * 10
    told = change(alike, row(99.9), past=alike, usual=usual, shared=shared_scatter([copies] * 20))
    assert regressed_of(told) is False
    assert regressed_of(change(alike, row(97.0), past=alike, usual=usual))


def test_two_sessions_are_compared_as_sets(history: History) -> None:
    """A recipe that one lacks, that another machine ran or that broke is said, and is no pass."""
    fleet = Fleet("s", 5)
    a, b, c, d, e = fleet.recipes
    old, new = fleet.session(0), fleet.session(1, {a: 0.05})
    del old[b], new[c]
    new[d] = new[d].model_copy(update={"nodes": 4})
    keep(history, old)
    keep(history, new)
    before, after = (runs_of(history, fleet.session_id(day)) for day in (0, 1))
    lines = compare_sessions(before, after)
    told = {(line.name, line.metric): (line.verdict, line.reason) for line in lines}
    assert told[a, "throughput"][0] == told[a, "step_time"][0] == "FAIL"
    assert told[e, "throughput"] == ("PASS", "")
    assert told[e, "energy_per_token"] == ("SKIP", "no run of either session has it: their reports have the reason")
    assert told[b, ""] == ("SKIP", "the earlier session has no run of it")
    assert told[c, ""] == ("SKIP", "the later session has no run of it")
    assert told[d, ""] == ("SKIP", "its runs are not comparable: nodes 1, then 4")
