"""Sampling a rank's GPU by NVML: what is written, and that nothing that goes wrong there ends a training."""

import importlib.util
import inspect
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.core.wire.step_events import EndEvent, Event, GpuEvent, TelemetryEvent, parse_event
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.readers.steps.gpu_window import read_telemetry
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank import gpu_samples
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog
from tests.unit.workloads.conftest import Launch, MakeRecipe

STANDIN = Path(__file__).parents[3] / "standins" / "nvml"
# An H200 at its power limit.
ROW = {
    "power": 690_500, "sm": 1455, "memory_clock": 3201, "temperature": 58, "used": 42_949_672_960,
    "event_reasons": 4, "throttle_reasons": 4,
}  # fmt: skip
# Longer than any test: the rows then stand for one moment each.
LONG_S = 1e6

Series = Callable[..., None]


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Series]:
    """Let this process have GPUs GPU-0 and GPU-1 that live through the given rows, and this test watch GPU-0."""
    monkeypatch.syspath_prepend(STANDIN)
    monkeypatch.setattr(gpu_samples, "gpu_uuid", lambda _: "GPU-0")
    monkeypatch.setattr(gpu_samples, "GPU_PERIOD_S", 0.01)
    real = sys.modules.pop("pynvml", None)

    def give(*rows: object, row_s: float = LONG_S) -> None:
        monkeypatch.setenv("NVML_SERIES", str(write_series(tmp_path, *rows, row_s=row_s)))

    yield give
    sys.modules.pop("pynvml", None)
    if real is not None:
        sys.modules["pynvml"] = real


def write_series(folder: Path, *rows: object, row_s: float) -> Path:
    path = folder / "series.json"
    path.write_text(json.dumps({"gpus": ["GPU-0", "GPU-1"], "row_s": row_s, "rows": rows}))
    return path


def events(context: RankContext) -> list[Event]:
    lines = (context.folder / "steps/rank-00000.jsonl").read_bytes().splitlines(keepends=True)
    return [parse_event(line) for line in lines]


def watch(context: RankContext, at_least: int = 3) -> tuple[list[TelemetryEvent], list[GpuEvent]]:
    """Sample until so many events are there; return what was told and what was sampled."""
    with StepLog(context) as log, gpu_samples.sampled(context, log):
        while len(events(context)) < at_least:
            time.sleep(0.005)
    found = events(context)
    told = [event for event in found if isinstance(event, TelemetryEvent)]
    sampled = [event for event in found if isinstance(event, GpuEvent)]
    assert len(told) + len(sampled) == len(found)
    assert found[0] == TelemetryEvent(gpu="GPU-0", period_s=0.01, trouble=told[0].trouble)
    return told, sampled


def test_a_rank_of_the_cpu_is_not_watched(context: RankContext) -> None:
    before = threading.active_count()
    with StepLog(context) as log, gpu_samples.sampled(context, log):
        assert threading.active_count() == before
    assert events(context) == []


@pytest.mark.parametrize(("cuda", "uuid"), [("13.0", "GPU-1b2c"), (None, None)])
def test_known_uuids(context: RankContext, monkeypatch: pytest.MonkeyPatch, cuda: str | None, uuid: str | None) -> None:
    torch = pytest.importorskip("torch")
    asked: list[int] = []

    def properties(index: int) -> object:
        asked.append(index)
        return SimpleNamespace(uuid="1b2c")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    of_gpu = replace(context, device="cuda", local_rank=3, ranks_per_node=8)
    assert gpu_samples.gpu_uuid(of_gpu) == uuid
    assert asked == ([3] if uuid else [])


def test_a_sample_is_what_nvml_tells(context: RankContext, series: Series) -> None:
    series(ROW)
    began = time.time()
    told, (first, *others) = watch(context)
    assert [event.trouble for event in told] == [None]
    assert began <= first.time <= others[0].time
    assert first.energy_mj is not None
    assert others[-1].energy_mj is not None
    assert first.energy_mj <= others[-1].energy_mj
    assert {name: value for name, value in asdict(first).items() if name not in {"time", "energy_mj"}} == {
        "event": "gpu", "power_w": 690.5, "sm_clock_mhz": 1455, "memory_clock_mhz": 3201, "temperature_degc": 58,
        "memory_used_bytes": 42_949_672_960, "clocks_event_reasons": 4,
    }  # fmt: skip


def test_the_last_sample_lies_behind_the_last_step(context: RankContext, series: Series) -> None:
    series(ROW)
    with StepLog(context) as log:
        with gpu_samples.sampled(context, log):
            end = time.time()
        last = events(context)[-1]
    assert isinstance(last, GpuEvent)
    assert last.time >= end


@pytest.mark.parametrize(("row", "expected"), [
    *(({"sm": error, "energy": error}, (None, None, 690.5, 4))
      for error in ("NotSupported", "NoPermission", "FunctionNotFound")),
    # Before driver 535 they were throttle reasons.
    ({"event_reasons": "FunctionNotFound", "throttle_reasons": 8, "energy": "NotSupported"}, (None, 1455, 690.5, 8)),
    (dict.fromkeys(("event_reasons", "throttle_reasons", "energy"), "NotSupported"), (None, 1455, 690.5, None)),
])  # fmt: skip
def test_what_a_gpu_does_not_tell_is_null(
    context: RankContext, series: Series, row: dict[str, Any], expected: tuple[float | None, ...]
) -> None:
    """One number that is not to be had, or none at all, costs no other and is no trouble."""
    series(ROW | row)
    told, (first, *_) = watch(context)
    assert (first.energy_mj, first.sm_clock_mhz, first.power_w, first.clocks_event_reasons) == expected
    assert [event.trouble for event in told] == [None]


def test_a_gpu_that_is_lost_is_said_once(context: RankContext, series: Series) -> None:
    series(ROW, "GpuIsLost", row_s=0.1)
    with StepLog(context) as log, gpu_samples.sampled(context, log):
        time.sleep(0.2)  # through both rows, whatever comes of it
        while not any(isinstance(event, TelemetryEvent) and event.trouble for event in events(context)):
            time.sleep(0.005)
        at = len(events(context))
        time.sleep(0.05)
    told = [event for event in events(context)[at:] if isinstance(event, TelemetryEvent)]
    assert told == []
    assert any(isinstance(event, GpuEvent) for event in events(context))


def test_an_error_that_passes_costs_a_sample(context: RankContext, series: Series) -> None:
    series("Unknown", ROW, row_s=0.05)
    told, sampled = watch(context, at_least=6)
    assert [event.trouble for event in told] == [None, "NVML: Unknown Error"]
    assert sampled


def test_no_driver_is_said(context: RankContext, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event says what NVML says; there are no samples, and the block ends as it would."""
    monkeypatch.delenv("NVML_SERIES", raising=False)
    told, sampled = watch(context, at_least=2)
    assert [event.trouble for event in told] == [None, "NVML: NVML Shared Library Not Found"]
    assert sampled == []


def test_a_gpu_unknown_to_nvml_is_said(context: RankContext, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    series(ROW)
    monkeypatch.setattr(gpu_samples, "gpu_uuid", lambda _: "GPU-7")
    with StepLog(context) as log, gpu_samples.sampled(context, log):
        while len(events(context)) < 2:
            time.sleep(0.005)
    assert events(context)[1:] == [TelemetryEvent(gpu="GPU-7", period_s=0.01, trouble="NVML: Not Found")]


def test_a_missing_package_is_said(context: RankContext, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told, sampled = watch(context, at_least=1)
    (event,) = told
    assert event.trouble == "nvidia-ml-py is not installed: pip install 'pytest-llmbench[torch]'"
    assert sampled == []


def test_a_value_that_no_reader_takes_is_said(context: RankContext, series: Series) -> None:
    """A number beyond all reason ends the sampling and not the training."""
    series(ROW | {"used": 2**64 - 1})
    told, sampled = watch(context, at_least=2)
    assert sampled == []
    assert (told[-1].trouble or "").startswith("ValueError: memory_used_bytes must be a number that a GPU may have")


def test_hung_calls_write_nothing_later(context: RankContext, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank does not wait for it, and its log is closed when the call comes back."""
    series(ROW)
    nvml, back = importlib.import_module("pynvml"), threading.Event()
    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", lambda _: back.wait() or ROW["power"])
    monkeypatch.setattr(gpu_samples, "_END_S", 0.05)
    with StepLog(context) as log:
        with gpu_samples.sampled(context, log):
            (thread,) = [each for each in threading.enumerate() if each.name == "llmbench-telemetry"]
        before = events(context)
        back.set()
        thread.join()
        assert events(context) == before
    assert before == [TelemetryEvent(gpu="GPU-0", period_s=0.01, trouble=None)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
def test_a_full_disk_ends_the_sampling_alone(context: RankContext, series: Series) -> None:
    """The rank's own next event is what says it; an error of the thread would fail this test."""
    series(ROW)
    with StepLog(context) as log, gpu_samples.sampled(context, log):
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), log._log)
        os.close(full)
        while any(each.name == "llmbench-telemetry" for each in threading.enumerate()):
            time.sleep(0.005)
    assert all(isinstance(event, TelemetryEvent | GpuEvent) for event in events(context))


def standin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("standin_pynvml", STANDIN / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stand_in_is_like_the_real_module() -> None:
    """Functions by name and arguments, numbers by name, errors by class and number: all are in the real one."""
    real, ours = pytest.importorskip("pynvml"), standin()
    names = {name for name in vars(ours) if name.lower().startswith("nvml")}
    functions = {name for name in names if inspect.isfunction(getattr(ours, name))}
    errors = {name for name in names if name.startswith("NVMLError_")}
    numbers = {name for name in names if isinstance(getattr(ours, name), int)}
    assert names == functions | errors | numbers | {"NVMLError"}
    for name in functions:
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(
            inspect.signature(getattr(real, name)).parameters
        ), name
    assert {name: getattr(ours, name) for name in numbers} == {name: getattr(real, name) for name in numbers}
    for number in (getattr(ours, name) for name in numbers if name.startswith("NVML_ERROR_")):
        ours_raised, real_raised = ours.NVMLError(number), real.NVMLError(number)
        assert type(ours_raised).__name__ == type(real_raised).__name__
        assert isinstance(ours_raised, ours.NVMLError)
        assert (ours_raised.value, str(ours_raised)) == (real_raised.value, str(real_raised))


def test_the_sampler_asks_only_what_the_stand_in_knows() -> None:
    source = inspect.getsource(gpu_samples)
    asked = {word for word in source.replace("(", " ").replace('"', " ").replace(",", " ").split() if "nvml" in word}
    named = {word.rsplit(".", 1)[-1].strip(").:") for word in asked}
    assert {name for name in named if name.startswith("nvml")} - {"nvml"} <= set(vars(standin()))


PACED = """
import time
from pytest_llmbench.engines.torch.ranks.run import train
from pytest_llmbench.workloads.training import matmul

matmul.measure = lambda *_: 1e9

def entry(context, log):
    write = log.step

    def paced(**numbers):
        time.sleep(0.05)  # which is part of the next step
        write(**numbers)

    log.step = paced
    train(context, log)
"""


def test_real_ranks_are_watched_while_they_train(
    tmp_path: Path, launch: Launch, make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real trainings, each with a GPU that is a stand-in: steps as ever, and the window's numbers from the GPU."""
    for path in STANDIN.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "paced.py").write_text(PACED)
    monkeypatch.setenv("NVML_SERIES", str(write_series(tmp_path, ROW, row_s=LONG_S)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = make_recipe(steps=60, warm_up={"steps": 10})
    for process in launch(tmp_path, "paced:entry", config=recipe.model_dump(mode="json")):
        assert process.wait(120) == 0, (tmp_path / "output-0").read_text()
    series = read_steps(tmp_path)
    judged = judged_steps(recipe, series.steps)
    watched = read_telemetry(tmp_path, judged)
    assert series.unreadable == ()
    assert [(step.step, step.ranks) for step in series.steps] == [(number, 2) for number in range(1, 61)]
    assert [(each.rank, each.gpu) for each in watched] == [(0, "GPU-0"), (1, "GPU-1")]
    for log in (tmp_path / "steps").iterdir():
        assert isinstance(parse_event(log.read_bytes().splitlines(keepends=True)[-1]), EndEvent)
    for each in watched:
        assert each.seconds is not None
        assert 0 < each.samples <= each.seconds / 0.1 + 1
        assert each.reasons == {"power cap": each.samples}
    measurement = Measurement(
        recipe=recipe, steps=series.steps, judged=judged, gpus=2, matmul_flops_per_s=None, peak_flops_per_s=None,
        telemetry=watched,
    )  # fmt: skip
    found = {name: metric.value for name, metric in measure(measurement).items()}
    # A machine under load may leave gaps, which are then said; numbers there are right all the same.
    expected = {"clock_mean": 1455.0, "clock_min": 1455.0, "temperature_max": 58.0, "memory_used_max": 40.0}
    expected |= {"throttled": 0.0, "power_capped": 100.0}
    gaps = [gap for each in watched for gap in each.gaps]
    assert found.keys() >= expected.keys() or gaps
    assert {name: value for name, value in found.items() if name in expected}.items() <= expected.items()
    if "power_mean" in found:
        assert found["power_mean"] == pytest.approx(690.5, rel=0.1)
