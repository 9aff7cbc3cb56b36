"""Run records: what is written is read back, and nothing else is taken for one."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Judgement, Metric, Problem, RunRecord, Timings, Verdict, write_model
from pytest_llmbench.core.record.series import RankInfo, Step
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.schema import validate

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
