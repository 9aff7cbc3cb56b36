"""Looks at a run of a shipped recipe, by the steps of a real one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_llmbench.cluster.runs import EarlyPlan
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.statistics import judged_steps, steady_of
from pytest_llmbench.session.early import Looking
from tests.support.recorded import REAL
from tests.support.shipped import shipped_recipes

STEPS = 100


def series_of(seconds_factor: float, steps: int) -> StepSeries:
    """The first steps of a real run on one H200, which go on like its last ones; ranks as they are then."""
    record = RunRecord.read(REAL)
    made = [
        step.model_copy(update={"step": number, "seconds": (step.seconds or 0.0) * seconds_factor})
        for number, step in enumerate([*record.steps, *record.steps[20:], *record.steps[20:]][:steps], 1)
    ]
    rank = record.rank_info[0].model_copy(update={"matmul_rates": (6.9e14, 6.9e14), "ended": False})
    return StepSeries(ranks=(rank,), steps=tuple(made))


@pytest.mark.parametrize(("factor", "fails"), [(1.0, set()), (1.5, {"h200"})])
def test_a_shipped_recipe_ends_at_a_quarter(factor: float, fails: set[str], tmp_path: Path) -> None:
    """`opt125m` by all its references for an H200, a fall of the loss and a share of a rate among them."""
    topology = Topology(nodes=1, gpus_per_node=1)
    recipe = shipped_recipes()["opt125m"].on(topology)
    engine = SimpleNamespace(
        statistics=get_engine("torch").statistics, read=lambda _folder, _recipe: series_of(factor, 30)
    )
    run = SimpleNamespace(
        spec=SimpleNamespace(recipe=recipe), engine=engine, place=SimpleNamespace(folder=tmp_path), topology=topology
    )
    settings = SimpleNamespace(system=SimpleNamespace(name="h200", gpu=None))
    names = ("azure_200k", "h200", "matmul_efficiency", "loss_falls")
    looking = Looking(cast("Any", run), EarlyPlan(references=names), cast("Any", settings))
    assert looking.look(30)
    assert looking.asked is not None
    ends = {text.split(":")[0]: text.rsplit(" ", 1)[1] for text in looking.asked.decided}
    assert ends == {name: "FAIL" if name in fails else "PASS" for name in names[1:]}
    whole = steady_of(judged_steps(recipe, series_of(factor, STEPS).steps))
    assert whole is not None
    assert whole.decide(recipe.tokens_per_step / 387e3) == ("too_slow" if fails else "fast_enough")
