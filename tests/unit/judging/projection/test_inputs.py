"""What a projection is made from: run records, slices written by hand, records of collectives; and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord, Report
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.judging.flops import flops_per_token
from pytest_llmbench.projection.inputs import SPREAD, layer_cost, read_curves, read_slice
from tests.unit.judging.conftest import GPU, small

from .test_links import MIB, curve
from .test_slices import HARDWARE

WRITTEN: dict[str, Any] = {
    "name": "4 layers", "source": "this test", "gpu": "H200", "gpus": 4, "gpus_per_node": 8,
    "model": {"layers": 4, "hidden_size": 12288, "attention_heads": 96, "vocab_size": 50304},
    "sequence_length": 2048, "micro_batch_size": 2, "global_batch_size": 8, "tensor": 4, "tflops_per_gpu": 445.0,
}  # fmt: skip


def record(seconds: float | None = 2.0, **changes: Any) -> dict[str, Any]:
    """A run record of a small recipe on two GPUs, as it stands in its file."""
    recipe = small(engine="megatron_core", parallelism={"tensor": 2}, micro_batch_size=2, precision="bf16")
    # The first steps are warm-up; the median of the others is 2 s.
    steps = tuple(
        Step(
            step=n,
            seconds=seconds and (9.0 if n <= 5 else seconds + 0.1 * (n % 3 - 1)),
            tokens=256,
            samples=8,
            loss=1.0,
        )
        for n in range(1, 13)
    )
    plain: dict[str, Any] = {
        "session": "s", "key": "small", "token": "t", "recipe": recipe, "system": "a", "cluster": "local",
        "allocation": "run", "nodes": 1, "ranks": 2, "gpus": 2, "folder": "f", "device": f"NVIDIA {GPU}",
        "steps": steps,
    }  # fmt: skip
    told = RunRecord(**{**plain, **changes})
    return dict(json.loads(told.model_dump_json()))


def test_a_run_record_is_a_slice() -> None:
    """Its layout is the recipe's, its step the median of the judged ones, its spread what one run leaves open."""
    found = read_slice(record(), "record.json")
    assert (found.layout.tensor, found.layout.data, found.layout.micro_batches) == (2, 1, 4)
    assert found.gpu == f"NVIDIA {GPU}"
    assert found.step_s.likely == pytest.approx(2.0)
    assert found.step_s.worst == pytest.approx(2.0 * (1 + SPREAD))


def test_a_slice_written_by_hand() -> None:
    """Its step follows from its rate: model FLOPs of 8 sequences by 4 GPUs of 445 TFLOP/s."""
    found = read_slice(WRITTEN, "slice.json")
    flops = flops_per_token(found.layout.model, 2048) * 8 * 2048
    assert found.layout.micro_batches == 4
    assert found.step_s.likely == pytest.approx(flops / (4 * 445e12))
    timed = {**WRITTEN, "step_s": 0.4}
    del timed["tflops_per_gpu"]
    assert read_slice(timed, "slice.json").step_s.likely == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"problem": Problem(kind="hang", message="m")}, r"could not be judged \(hang\)"),
        ({"gpus": 0, "device": "cpu"}, "used no GPU"),
        ({"device": None}, "used no GPU"),
        ({"seconds": None}, "no time of every judged step"),
        ({"seconds": float("nan")}, "no time of every judged step"),
        ({"seconds": float("inf")}, "no time of every judged step"),
        ({"steps": ()}, "no time of every judged step"),
    ],
)
def test_a_run_that_is_no_measure_is_refused(changes: dict[str, Any], why: str) -> None:
    """With the file and the reason; never a number."""
    with pytest.raises(ConfigError, match=f"record.json: run small .*{why}"):
        read_slice(record(**changes), "record.json")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step_s": 1.0}, "one of them"),
        ({"tflops_per_gpu": None}, "one of them"),
        ({"tflops_per_gpu": 0.0}, "greater than 0"),
        ({"tflops_per_gpu": float("inf")}, "finite"),
        ({"tflops_per_gpu": float("nan")}, "tflops_per_gpu"),
        ({"spread": 1.0}, "less than 1"),
        ({"gpus": 6}, "do not divide evenly"),
        ({"global_batch_size": 7}, "do not divide evenly"),
        ({"layers": 4}, "unknown key 'layers'"),
        ({"gpu": None}, "gpu"),
    ],
)
def test_a_slice_with_something_wrong_is_refused(changes: dict[str, Any], why: str) -> None:
    """With the file and the key."""
    with pytest.raises(ConfigError, match=rf"slice\.json: .*{why}"):
        read_slice({**WRITTEN, **changes}, "slice.json")


def test_repeats_of_a_slice_have_a_spread_of_their_own() -> None:
    """Two runs of one layout are one slice; of two layouts two; of three layouts nobody knows which."""
    one, other = (read_slice({**WRITTEN, "tflops_per_gpu": rate}, "slice.json") for rate in (445.0, 400.0))
    found = layer_cost([one, other], HARDWARE)
    single = layer_cost([one], HARDWARE)
    assert found.layer_s["worst"] > single.layer_s["worst"]
    others = [read_slice({**WRITTEN, "micro_batch_size": size}, "slice.json") for size in (1, 4)]
    with pytest.raises(ConfigError, match="3 slices of different layouts"):
        layer_cost([one, *others], HARDWARE)


def test_two_depths_are_two_slices() -> None:
    """In either order."""
    deep = {**WRITTEN, "model": {**WRITTEN["model"], "layers": 8}, "tflops_per_gpu": 450.0}
    slices = [read_slice(each, "slice.json") for each in (deep, WRITTEN)]
    assert layer_cost(slices, HARDWARE) == layer_cost(slices[::-1], HARDWARE)
    assert layer_cost(slices, HARDWARE).layout.model.layers == 4


def test_curves_are_read_wherever_they_are() -> None:
    """Alone, in a list, in a health record, in a record of ours beside nccl-tests'."""
    measured = curve({MIB: 100.0})
    plain = measured.model_dump(mode="json")
    health = HealthRecord(
        session="s", token="t", check="all_reduce", family="collectives", scope="cluster", system="a", cluster="local",
        folder="f", report=Report(evidence={"curve": plain}),
    )  # fmt: skip
    compared = {"gpus": 8, "rows": [], "ours": {"all_reduce": [plain]}, "theirs": {"all_reduce": [plain, plain]}}
    for document, count in (
        (plain, 1), ({"curves": [plain]}, 1), (json.loads(health.model_dump_json()), 1), (compared, 3)
    ):  # fmt: skip
        assert read_curves(document, "f.json") == (measured,) * count


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "no curve in it"),
        ({"curves": [{"collective": "all_reduce"}]}, "points: missing"),
        ({**curve({MIB: 1.0}).model_dump(mode="json"), "complete": False}, "incomplete"),
    ],
)
def test_what_is_no_curve_is_refused(document: dict[str, Any], why: str) -> None:
    """With the file and the reason."""
    with pytest.raises(ConfigError, match=rf"f\.json: .*{why}"):
        read_curves(document, "f.json")


def test_wrong_values_are_no_measure() -> None:
    """A collective that computes nonsense may be fast."""
    plain = curve({MIB: 1.0}).model_dump(mode="json")
    plain["points"][0]["in_place"]["wrong"] = 1
    with pytest.raises(ConfigError, match="wrong values"):
        read_curves(plain, "f.json")


def test_a_health_record_that_could_not_be_judged_is_no_measure() -> None:
    """Even if there is a curve in it."""
    health = HealthRecord(
        session="s", token="t", check="all_reduce", family="collectives", scope="cluster", system="a", cluster="local",
        folder="f", report=Report(problem="it hung", evidence={"curve": curve({MIB: 1.0}).model_dump(mode="json")}),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"f\.json: all_reduce could not be judged: it hung"):
        read_curves(json.loads(health.model_dump_json()), "f.json")
