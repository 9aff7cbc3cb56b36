"""When steps end, of a device that works behind its host's back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank import step_clock
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.step_clock import StepClock
from pytest_llmbench.workloads.rank.steplog import StepLog

COUNTED: Any = SimpleNamespace(step_counts=lambda: (1, 2))  # sequences and tokens of a step


class Mark:
    """A mark of a device that passes marks at given times, however late the host looks."""

    times: Iterator[float]

    def __init__(self, _: torch.device) -> None:
        self.at = next(self.times)

    def wait(self) -> None: ...

    def since(self, earlier: Mark) -> float:
        return self.at - earlier.at


def test_a_late_host_moves_no_time_between_steps(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has its own time, the last as well, for which the host waits alone."""
    Mark.times = iter([0.0, 3.0, 3.5, 4.0, 4.5])
    monkeypatch.setattr(step_clock, "_Mark", Mark)
    monkeypatch.setattr(step_clock, "peak_memory_bytes", lambda _: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    with StepLog(context) as log:
        clock = StepClock(log, torch.device("cuda"), COUNTED)
        clock.start()
        for step in range(1, 5):
            clock.step(torch.tensor(float(step)), 1.0)
            assert len(read_steps(context.folder).steps) == step - 1  # written when the next one has been asked for
        clock.finish()
    steps = read_steps(context.folder).steps
    assert [step.seconds for step in steps] == pytest.approx([3.0, 0.5, 0.5, 0.5])
    assert [step.loss for step in steps] == [1.0, 2.0, 3.0, 4.0]


def test_a_host_alone_logs_at_once(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    with StepLog(context) as log:
        clock = StepClock(log, torch.device("cpu"), COUNTED)
        clock.start()
        clock.step(torch.tensor(1.0), torch.tensor(2.0))
        (step,) = read_steps(context.folder).steps
    assert step.seconds is not None
    assert step.seconds > 0


def test_ranks_of_a_device_end_one_step_after_the_word(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 tells it in step 3; every rank reads that when step 4 has been asked for, and makes no other."""
    Mark.times = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(step_clock, "_Mark", Mark)
    monkeypatch.setattr(step_clock, "peak_memory_bytes", lambda _: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    told = iter([0.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, _: tensor.fill_(next(told)))
    with StepLog(replace(context, may_end_early=True)) as log:
        clock = StepClock(log, torch.device("cuda"), COUNTED)
        clock.start()
        for step in clock.steps(9):
            clock.step(torch.tensor(float(step)), 1.0)
        clock.finish()
        log.end()
    series = read_steps(context.folder)
    assert [step.loss for step in series.steps] == [1.0, 2.0, 3.0, 4.0]
    (end,) = (
        line for line in (context.folder / "steps" / "rank-00000.jsonl").read_text().splitlines() if "end" in line
    )
    assert '"asked":true' in end
