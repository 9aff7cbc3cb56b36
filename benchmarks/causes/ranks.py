"""Ranks with something wrong in them: a training of the harness's own, slowed down where the case says so."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.steplog import StepLog

CASE = "REASONS_CASE"


def train(context: RankContext, log: StepLog) -> None:
    """Train as the recipe says, with the case's cause."""
    case: dict[str, Any] = json.loads(os.environ[CASE])
    work, data, sync = _work(case, context.rank), _data(case, context.rank), case["sync_s"]
    if case["torch"]:
        import pytest_llmbench.engines.torch.ranks.run as training  # noqa: PLC0415 - the others need no PyTorch
        from pytest_llmbench.engines.torch.ranks.decoder import Decoder  # noqa: PLC0415

        training.batch = _after(lambda: time.sleep(data), training.batch)  # type: ignore[attr-defined]
        Decoder.forward = _after(work, Decoder.forward)  # type: ignore[method-assign]
    else:
        from llmbench_unigram import training  # type: ignore[no-redef]  # noqa: PLC0415

        slow_down(training, data_s=data, work=work, sync_s=sync)
    training.train(context, log)


def slow_down(training: Any, *, data_s: float, work: Callable[[], None], sync_s: float) -> None:
    """Have the training of the tests' engine take longer where a rank gets its data, computes, and waits for others."""
    training.Zipf.batch = _after(lambda: time.sleep(data_s), training.Zipf.batch)
    training.Table.loss = _after(work, training.Table.loss)
    training.Meeting.sum = _after(lambda: time.sleep(sync_s), training.Meeting.sum)


def _after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **kwargs: Any) -> Any:
        before()
        return function(*args, **kwargs)

    return changed


def _data(case: Mapping[str, Any], rank: int) -> float:
    return float(case["data_s"]) if case["culprit"] in {None, rank} else 0.0


def _work(case: Mapping[str, Any], rank: int) -> Callable[[], None]:
    chance, step = random.Random(rank), 0

    def work() -> None:
        nonlocal step
        step += 1
        seconds = case["work_s"] * (chance.lognormvariate(0.0, case["noise"]) if case["noise"] else 1.0)
        if rank == case["culprit"]:
            seconds += case["late_s"]
        if step <= case["first"] and case["first_rank"] in {None, rank}:
            seconds += case["first_s"]
        if case["every"] and step % case["every"] == 0:
            seconds += case["pause_s"]
        if case["burns"]:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
        else:
            time.sleep(seconds)

    return work
