"""Runs whose ranks spent their time as a test says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import RankInfo, RankTimes, RunTimes, Step
from pytest_llmbench.core.schema import validate
from pytest_llmbench.judging.statistics import steady_of
from tests.conftest import TINY

MakeRun = Callable[..., RunRecord]


def rank(number: int, own: Mapping[str, float], step_s: float, last: float | None, **counters: Any) -> RankTimes:
    phases: Any = {**own, "sync": step_s - sum(own.values())}
    return RankTimes(rank=number, seconds=step_s, phases=phases, spread=1e-3 * step_s, last=last, **counters)


@pytest.fixture
def make_run() -> MakeRun:
    """A run of 40 judged steps of these durations, whose ranks are those."""

    def make(
        ranks: Sequence[RankTimes] = (), seconds: Sequence[float] = (0.1,) * 40, *, transfer_s: float | None = None,
        gpus: int = 0, layout: Mapping[str, Any] | None = None, **more: Any,
    ) -> RunRecord:  # fmt: skip
        recipe = validate(Recipe, {**TINY, "name": "run", "steps": 2 + len(seconds)}, "recipe")
        if layout:
            recipe = recipe.model_copy(update={"parallelism": recipe.parallelism.model_copy(update=dict(layout))})
        steps = tuple(Step(step=n, seconds=took, tokens=64, ranks=len(ranks)) for n, took in enumerate(seconds, 3))
        infos = tuple(
            RankInfo(
                rank=each.rank, host=f"n{each.rank}", pid=7, local_rank=0, device="cpu", versions={}, gpu=None,
            )
            for each in ranks
        )  # fmt: skip
        times = RunTimes(steps=len(seconds), ranks=tuple(ranks), transfer_s=transfer_s) if ranks else None
        known: dict[str, Any] = {"rank_info": infos, "times": times, **more}
        return RunRecord(
            session="s", key="run", token="t", recipe=recipe, system="any", cluster="local", allocation="run",
            nodes=max(1, len(ranks)), ranks=max(1, len(ranks)), gpus=gpus, folder="f", steps=steps,
            steady=steady_of(steps), **known,
        )  # fmt: skip

    return make
