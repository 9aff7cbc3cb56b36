"""The lines of a step log as models."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_llmbench.core.wire.step_events import (
    EndEvent,
    Event,
    FailureEvent,
    GpuEvent,
    MatmulEvent,
    StartEvent,
    StepEvent,
    TelemetryEvent,
    json_number,
    parse_event,
)

COUNTS = st.integers(1, 2**63 - 1)
SECONDS = st.floats(0, exclude_min=True, allow_infinity=False)
LOSSES = st.floats().map(json_number)
WORDS = st.text(max_size=40)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(StartEvent, schema=st.just(1), rank=COUNTS, world_size=COUNTS, local_rank=COUNTS, host=WORDS, pid=COUNTS,
              device=WORDS, versions=st.dictionaries(WORDS, WORDS, max_size=3), pid_namespace=COUNTS, time=SECONDS),
    st.builds(MatmulEvent, flops_per_s=SECONDS),
    st.builds(StepEvent, step=COUNTS, seconds=SECONDS, tokens=COUNTS, samples=COUNTS, loss=LOSSES, grad_norm=LOSSES,
              peak_memory_bytes=st.none() | COUNTS, time=SECONDS, logged=SECONDS),
    st.builds(TelemetryEvent, gpu=WORDS, period_s=SECONDS, trouble=st.none() | WORDS),
    st.builds(GpuEvent, time=SECONDS, energy_mj=st.none() | COUNTS, power_w=st.none() | SECONDS,
              sm_clock_mhz=st.none() | COUNTS, memory_clock_mhz=st.none() | COUNTS,
              temperature_degc=st.none() | COUNTS, memory_used_bytes=st.none() | COUNTS,
              clocks_event_reasons=st.none() | COUNTS),
    st.builds(EndEvent, steps=COUNTS, time=SECONDS),
    st.builds(FailureEvent, error=WORDS, time=SECONDS),
)  # fmt: skip


@given(EVENTS)
def test_every_event_is_one_line_of_strict_json(event: Event) -> None:
    line = event.line()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    json.loads(line, parse_constant=pytest.fail)
    assert parse_event(line) == event


@given(st.floats())
def test_any_number_survives(value: float) -> None:
    written = json_number(value)
    assert isinstance(written, str) != math.isfinite(value)
    assert math.isnan(float(written)) if math.isnan(value) else float(written) == value


def test_a_value_that_no_reader_would_take_is_not_written() -> None:
    """A step without duration, or a rate that is not finite, fails where it is made."""
    with pytest.raises(ValueError, match="flops_per_s must be positive and finite: inf"):
        MatmulEvent(flops_per_s=math.inf)
    with pytest.raises(ValueError, match=r"seconds must be positive and finite: 0\.0"):
        StepEvent(
            step=1, seconds=0.0, tokens=1, samples=1, loss=1.0, grad_norm=1.0, peak_memory_bytes=None, time=1.0,
            logged=1.0,
        )  # fmt: skip


WHOLE: dict[str, dict[str, Any]] = {
    "start": {
        "schema": 1, "rank": 0, "world_size": 8, "local_rank": 0, "host": "n1", "pid": 7, "device": "cpu",
        "versions": {}, "pid_namespace": 1, "time": 1.0,
    },
    "matmul": {"flops_per_s": 1e12},
    "training": {
        "world_size": 8, "tensor": 2, "pipeline": 1, "tensor_rank": 0, "pipeline_rank": 0, "copy_rank": 3, "layers": 12,
        "parameters": 125, "precision": "bf16", "sequence_length": 2048, "micro_batch_size": 8,
    },
    "telemetry": {"gpu": "GPU-1", "period_s": 0.5, "trouble": "x"},
    "gpu": {
        "time": 1.0, "energy_mj": 1, "power_w": 1.0, "sm_clock_mhz": 1, "memory_clock_mhz": 1, "temperature_degc": 1,
        "memory_used_bytes": 1, "clocks_event_reasons": 1,
    },
    "step": {
        "step": 1, "seconds": 1.0, "tokens": 1, "samples": 1, "loss": 1.0, "grad_norm": 1.0, "peak_memory_bytes": 1,
        "time": 1.0, "logged": 1.0,
    },
    "end": {"steps": 1, "time": 1.0},
    "failure": {"error": "x", "time": 1.0},
}  # fmt: skip


@pytest.mark.parametrize(("event", "key"), [(event, key) for event, whole in WHOLE.items() for key in whole])
def test_no_value_is_taken_for_what_it_is_not(event: str, key: str) -> None:
    """A text or a bool for a number, a number for a text, and a missing key are errors that name the key."""
    whole = {"event": event, **WHOLE[event]}
    assert parse_event(json.dumps(whole).encode()).event == event
    given = whole[key]
    for damage in [7, True] if isinstance(given, str) else [str(given), True, [given]]:
        with pytest.raises(ValidationError, match=rf"(?m)^{event}\.{key}(\.|$)"):
            parse_event(json.dumps({**whole, key: damage}).encode())
    del whole[key]
    with pytest.raises(ValidationError, match=rf"(?m)^{event}\.{key}$"):
        parse_event(json.dumps(whole).encode())


@pytest.mark.parametrize(
    "spent", [{"cpu_s": "1"}, {"cpu_s": True}, {"cpu_s": -1.0}, {"surprise": 1.0}, {"phases": {"nap": 1.0}}]
)
def test_the_time_that_a_step_spent_is_read_as_strictly(spent: dict[str, Any]) -> None:
    whole = {"event": "step", **WHOLE["step"]}
    told = {"cpu_s": 1, "phases": {"data": 1.0}}
    assert parse_event(json.dumps({**whole, "spent": told}).encode()).event == "step"
    with pytest.raises(ValidationError, match=r"step\.spent\."):
        parse_event(json.dumps({**whole, "spent": spent}).encode())
