"""Run records, health records and curves: what is written is read back, and nothing unmeasured ever passes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.curves import (
    COLLECTIVES,
    Curve,
    Point,
    Timing,
    asked_size,
    busbw_factor,
    size_name,
    timing,
)
from pytest_llmbench.core.record.health import Finding, HealthRecord, Report, Severity
from pytest_llmbench.core.record.records import Judgement, Metric, Problem, RunRecord, Timings, Verdict, write_model
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.schema import validate
from pytest_llmbench.core.wire.step_events import TrainingEvent

RECIPE = validate(
    Recipe,
    {
        "name": "tiny", "engine": "torch",
        "model": {"layers": 1, "hidden_size": 32, "attention_heads": 2, "vocab_size": 128}, "sequence_length": 32,
        "global_batch_size": 8, "micro_batch_size": 2, "optimizer": {"learning_rate": 1e-2}, "steps": 8,
        "time_limit": "1-02:03",
        "references": [
            {
                "name": "fast", "statistic": "throughput", "at_least": "123456.789 words/s", "why": "it must",
                "source": "here", "date": "2026-01-01", "applies_to": {"gpu": "H200", "gpus": 1},
            }
        ],
    },
    "recipe",
)  # fmt: skip


def step(number: int, loss: float = 2.5) -> Step:
    return Step(
        step=number, seconds=0.1, tokens=256, samples=8, loss=loss, grad_norm=loss, peak_memory_bytes=1, ranks=1
    )  # fmt: skip


def record(folder: Path, *losses: float) -> RunRecord:
    return RunRecord(
        session="s", key="tiny", token="t", recipe=RECIPE, system="here", cluster="slurm", allocation="run", nodes=1,
        ranks=1, gpus=1, folder=str(folder), job_id="17", hosts=("n0",), command="srun tea",
        versions={"torch": "2.13.0"}, timings=Timings(submitted=1.5, started=2.5),
        rank_info=(RankInfo(rank=0, host="n0", pid=1, local_rank=0, device="NVIDIA H200", versions={}),),
        steps=tuple(step(number, loss) for number, loss in enumerate(losses, start=1)),
        telemetry=(
            GpuTelemetry(rank=0, gpu="GPU-0", samples=3, energy_j=0.1, reasons={"power cap": 3}, gaps=("a gap",)),
        ),
        metrics={"throughput": Metric(value=1e5, unit="words/s", rule="a rule")},
        problem=Problem(kind="hang", message="no step", log="rank-0.log"),
        judgements=(Judgement(test="test_it", verdict=Verdict.ERROR, reason="no step"),),
    )  # fmt: skip


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(tmp_path, 2.5, 2.25)
    write_model(written.path, written)
    assert written.path == tmp_path / "record.json"
    assert written.logs == tmp_path / "logs"
    assert RunRecord.read(written.path) == written


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_run_survives_its_record(tmp_path: Path, value: float) -> None:
    """A loss that is not finite is kept as what it was, in JSON that any parser takes."""
    written = record(tmp_path, 2.5, value)
    write_model(written.path, written)
    json.loads(written.path.read_bytes(), parse_constant=pytest.fail)
    again = RunRecord.read(written.path)
    assert [str(each.loss) for each in again.steps] == ["2.5", str(value)]
    assert [str(each.grad_norm) for each in again.steps] == ["2.5", str(value)]
    assert repr(again) == repr(written)


def test_a_record_of_another_schema_version_or_with_a_surprise_is_refused(tmp_path: Path) -> None:
    """A number that may mean something else in another version is not read. A missing record is named."""
    written = record(tmp_path)
    data = json.loads(written.model_dump_json())
    assert data["schema_version"] == 1
    written.path.write_text(json.dumps(data | {"schema_version": 2}))
    with pytest.raises(ConfigError, match=r"record\.json: no run record of schema version 1"):
        RunRecord.read(written.path)
    written.path.write_text(json.dumps(json.loads(written.model_dump_json()) | {"surprise": 1}))
    with pytest.raises(ConfigError, match="surprise"):
        RunRecord.read(written.path)
    with pytest.raises(ConfigError, match=r"gone\.json: no run record"):
        RunRecord.read(tmp_path / "gone.json")


@given(st.data())
def test_a_cut_record_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.json"
    whole = record(path.parent, 2.5).model_dump_json(indent=1)
    path.write_text(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ConfigError, match="no run record"):
        RunRecord.read(path)


def test_a_metric_is_a_quantity() -> None:
    assert Metric(value=1e5, unit="words/s", rule="a rule").quantity == Quantity("100K tokens/s")


COUNTS = st.integers(0, 2**63)
STEPS = st.builds(
    Step, step=COUNTS, seconds=st.floats(), tokens=COUNTS, samples=COUNTS, loss=st.floats(), grad_norm=st.floats(),
    peak_memory_bytes=st.none() | COUNTS, ranks=COUNTS,
)  # fmt: skip
RANKS = st.builds(
    RankInfo, rank=COUNTS, host=st.text(max_size=9), pid=COUNTS, local_rank=COUNTS, device=st.text(max_size=9),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    matmul_flops_per_s=st.none() | st.floats(), ended=st.booleans(), failure=st.none() | st.text(max_size=9),
    failed_at=st.none() | st.floats(),
)  # fmt: skip


@given(st.lists(STEPS, max_size=3), st.lists(RANKS, max_size=2), st.lists(st.text(max_size=9), max_size=2))
def test_every_series_survives_json(steps: list[Step], ranks: list[RankInfo], unreadable: list[str]) -> None:
    series = StepSeries(ranks=tuple(ranks), steps=tuple(steps), unreadable=tuple(unreadable))
    again = StepSeries.model_validate_json(series.model_dump_json())
    assert repr(again) == repr(series)  # a NaN is not equal to itself


TRAINING: dict[str, Any] = {
    "event": "training", "world_size": 8, "tensor": 2, "pipeline": 1, "tensor_rank": 0, "pipeline_rank": 0,
    "copy_rank": 3, "layers": 12, "parameters": 125_000_000, "precision": "bf16", "sequence_length": None,
    "micro_batch_size": 8,
}  # fmt: skip
RANK: dict[str, Any] = {"rank": 0, "host": "n1", "pid": 1, "local_rank": 0, "device": "cpu", "versions": {}}
DAMAGE: dict[str, dict[str, Any]] = {
    "a text for a count": {"world_size": "8"}, "a bool for a count": {"tensor": True},
    "a float for a count": {"layers": 12.0}, "zero ranks": {"world_size": 0}, "a negative count": {"parameters": -1},
    "none for a count": {"copy_rank": None}, "a text for a count that may be none": {"micro_batch_size": "8"},
    "a number for a word": {"precision": 16}, "another event": {"event": "step"},
    "an unknown key": {"surprise": 1},
}  # fmt: skip
# As a record is read from its file, and as it is made again after its texts were cleaned.
READ: tuple[Callable[[dict[str, Any]], RankInfo], ...] = (
    lambda given: RankInfo.model_validate_json(json.dumps(given)),
    RankInfo.model_validate,
)


def test_counts_of_a_training_are_read_from_a_record() -> None:
    for read in READ:
        assert read({**RANK, "training": TRAINING}).training == TrainingEvent(**TRAINING)


@pytest.mark.parametrize("changes", DAMAGE.values(), ids=DAMAGE)
def test_a_record_with_damaged_counts_of_a_training_is_refused(changes: dict[str, Any]) -> None:
    """A value of another type is never read as a number, and the error names the key."""
    (key,) = changes
    for read in READ:
        with pytest.raises(ValidationError, match=rf"training\.{key}\n"):
            read({**RANK, "training": {**TRAINING, **changes}})


@pytest.mark.parametrize("key", [name for name in TRAINING if name != "event"])
def test_a_record_that_lacks_a_count_of_a_training_is_refused(key: str) -> None:
    left = {name: value for name, value in TRAINING.items() if name != key}
    for read in READ:
        with pytest.raises(ValidationError, match=rf"training\.{key}\n  Field required"):
            read({**RANK, "training": left})


HOSTS = ("a", "b", "c")


def health(report: Report, folder: str = "folder") -> HealthRecord:
    return HealthRecord(
        session="s", token="t", check="limits", family="host", scope="node", system="x", cluster="local",
        hosts=HOSTS, folder=folder, report=report,
    )  # fmt: skip


def finding(host: str | None, severity: Severity) -> Finding:
    return Finding(host=host, kind="limit", severity=severity, message="too low")


def test_each_node_has_its_own_verdict() -> None:
    told = health(Report(findings=(finding("a", Severity.RESET),), unjudged={"b": "silent"}))
    assert [told.state(slot)[0] for slot in range(3)] == [Verdict.FAIL, Verdict.ERROR, Verdict.PASS]
    assert told.state(None)[0] is Verdict.FAIL
    assert set(told.unfit()) == {"a", "b"}


def test_what_is_to_be_watched_fails_nobody_and_a_slot_without_a_node_is_an_error() -> None:
    told = health(Report(findings=(finding("a", Severity.MONITOR),)))
    assert told.state(0) == (Verdict.PASS, "")
    assert told.unfit() == {}
    assert health(Report()).state(3)[0] is Verdict.ERROR


names = st.sampled_from([*HOSTS, "elsewhere"])
whys = st.dictionaries(names, st.text(min_size=1), max_size=4)
reports = st.builds(
    Report, findings=st.lists(st.builds(finding, st.none() | names, st.sampled_from(Severity)), max_size=4).map(tuple),
    unjudged=whys, skipped=whys, problem=st.none() | st.text(min_size=1), skip=st.none() | st.text(min_size=1),
)  # fmt: skip


@given(report=reports, slot=st.integers(0, 4))
def test_a_pass_means_that_nothing_else_is_true(report: Report, slot: int) -> None:
    """The node is there, was asked, answered, and nothing that fails was found about it."""
    verdict, told = health(report).state(slot)
    host = HOSTS[slot] if slot < 3 else None
    wrong = any(found.host == host and found.severity.fails for found in report.findings)
    fine = host is not None and not wrong and host not in report.unjudged and host not in report.skipped
    assert (verdict is Verdict.PASS) == (fine and report.problem is None and report.skip is None)
    assert bool(told) == (verdict is not Verdict.PASS)


@given(report=reports)
def test_the_whole_passes_only_where_every_node_does(report: Report) -> None:
    told = health(report)
    states = {host: told.state(slot)[0] for slot, host in enumerate(HOSTS)}
    if told.state(None)[0] is Verdict.PASS:
        assert set(states.values()) == {Verdict.PASS}
    if report.problem is None and report.skip is None:
        assert {host for host, verdict in states.items() if verdict in {Verdict.FAIL, Verdict.ERROR}} == set(
            told.unfit()
        ) & set(HOSTS)


def test_a_record_is_read_back_whole_or_not_at_all(tmp_path: Path) -> None:
    told = health(Report(findings=(finding("a", Severity.ISOLATE),), evidence={"x": [1, 2]}), str(tmp_path))
    write_model(told.path, told)
    assert HealthRecord.read(told.path) == told
    told.path.write_text(told.path.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"record\.json"):
        HealthRecord.read(told.path)


GIB = 1 << 30


def point(size: int, busbw: float, wrong: int | None = 0, *, in_place: bool = False) -> Point:
    told = Timing(time_us=1.0, algbw=busbw, busbw=busbw, wrong=wrong)
    sides: dict[str, Any] = {"in_place" if in_place else "out_of_place": told}
    return Point(size=size, count=size // 4, dtype="float32", **sides)


def test_bandwidths_are_those_that_nccl_tests_printed() -> None:
    """A row of the sample of 8 H100: 8 GiB in 31307 us are 274.38 GB/s, and 480.16 GB/s on the bus."""
    found = timing("all_reduce", 8 * GIB, 8, 31307.0, 0)
    assert (round(found.algbw, 2), round(found.busbw, 2)) == (274.38, 480.16)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("alltoall", 0.75), ("reduce", 1.0),
     ("broadcast", 1.0), ("sendrecv", 1.0)],
)  # fmt: skip
def test_the_bus_factors_of_four_ranks(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 4) == factor
    assert collective in COLLECTIVES


def test_an_unknown_collective_has_no_factor_and_what_was_not_checked_is_not_right() -> None:
    with pytest.raises(ValueError, match="not one of all_reduce"):
        busbw_factor("allreduce", 4)
    assert point(8, 1.0, None).wrong is None


def test_what_is_looked_up() -> None:
    """Of two rows of a size the slower counts; out of place goes before in place; the peak is the highest."""
    both = Point(
        size=8, count=2, dtype="float32", out_of_place=timing("reduce", 8, 2, 4.0, 1),
        in_place=timing("reduce", 8, 2, 2.0, 2),
    )  # fmt: skip
    curve = Curve(
        collective="reduce", points=(both, point(16, 9.0, in_place=True), point(16, 7.0), point(32, 5.0)), complete=True
    )
    at_16, at_8 = curve.at(16), curve.at(8)
    assert at_16 is not None
    assert at_16.timing is not None
    assert at_16.timing.busbw == 7.0
    assert at_8 is not None
    assert at_8.timing == at_8.out_of_place
    assert (at_8.wrong, curve.wrong) == (3, (both,))
    assert curve.peak == point(16, 9.0, in_place=True)
    assert curve.at(64) is None


@given(power=st.integers(4, 40), ranks=st.integers(1, 100))
def test_a_size_tells_what_was_asked_for(power: int, ranks: int) -> None:
    """Equal parts of 16 bytes for all ranks make a size a little smaller; it keeps the name of what was asked for."""
    asked = 1 << power
    size = asked // ranks // 16 * 16 * ranks
    if size > asked // 2:
        assert asked_size("all_gather", size, ranks) == asked
    assert asked_size("all_reduce", asked - 24, ranks) == asked - 24


@given(st.integers(0, 1 << 45))
def test_a_size_name_is_exact(size: int) -> None:
    name = size_name(size)
    digits = name.rstrip("BKMGTi")
    assert int(digits) * 1024 ** ("", "K", "M", "G", "T").index(name[len(digits) :].rstrip("iB")) == size


def test_size_names() -> None:
    assert [size_name(size) for size in (8, 1024, 1 << 20, 8 * GIB, 1000)] == ["8B", "1KiB", "1MiB", "8GiB", "1000B"]
