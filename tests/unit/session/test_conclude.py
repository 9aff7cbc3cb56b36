"""What becomes of a run's log: metrics, or the reason why there are none; and looks at it before its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from pytest_llmbench.cluster.runs import EarlyPlan
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import RunOutcome, RunRecord
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.judging.sanity import Evidence
from pytest_llmbench.judging.statistics import judged_steps, measure, steady_of
from pytest_llmbench.session.early import Looking
from pytest_llmbench.session.ending import conclude_logs, measurement_of
from tests.conftest import known
from tests.support.recorded import REAL
from tests.support.shipped import shipped_recipes
from tests.unit.judging.conftest import small

Kind = Literal["ranks", "command"]
SYSTEM = load_system("H200", [shipped("systems")])


def evidence(gpus: int, last_s: float, kind: Kind, rates: tuple[float, ...] = (1e10,)) -> Evidence:
    """A run of 12 steps of 10 ms each, but for the last."""
    recipe = small(warm_up={"steps": 2})
    steps = tuple(
        Step(
            step=number, seconds=last_s if number == 12 else 0.01, tokens=recipe.tokens_per_step, samples=8, ranks=1,
            loss=3.0 - number / 12, grad_norm=1.0,
        )
        for number in range(1, 13)
    )  # fmt: skip
    topology = Topology(nodes=1, gpus_per_node=gpus)
    own = RankInfo(
        rank=0, host="n0", pid=1, local_rank=0, device="NVIDIA H200" if gpus else "cpu", versions={}, ended=True,
        matmul_flops_per_s=max(rates), matmul_rates=rates,
    )  # fmt: skip
    series = StepSeries(ranks=(own,), steps=steps)
    return Evidence(
        recipe=recipe, topology=topology, series=series, hosts=("n0",), wall_s=1.0, gpu=None,
        kind=kind,
    )  # fmt: skip


@pytest.mark.parametrize(("gpus", "last_s", "kind", "implausible"), [
    (1, 0.01, "ranks", False), (1, 1e-4, "ranks", True), (0, 1e-4, "ranks", False), (1, 1e-4, "command", False),
], ids=["steady", "a GPU of ours", "a CPU", "a framework's clock"])  # fmt: skip
def test_a_single_step_is_held_against_the_hardware_where_its_clock_is_the_gpus(
    gpus: int, last_s: float, kind: Kind, implausible: bool
) -> None:
    found = conclude_logs(evidence(gpus, last_s, kind), SYSTEM, None, {})
    assert (found.problem is not None) == implausible
    assert bool(found.metrics) != implausible
    if implausible:
        assert found.problem is not None
        assert found.problem.kind == "implausible"
        assert found.problem.message.startswith("step 12 took 0.0001 s, which would be a share of the measured")


TRAINS = evidence(0, 0.01, "ranks")


def shares(*rates: float, too_short: float = 1.0) -> RunOutcome:
    """The findings of a run if its ranks measured multiples of its training's real rate.

    Args:
        rates: these multiples, in order.
        too_short: factor by which its step times are.
    """
    rate = known(measurement_of(TRAINS, SYSTEM).model_flops_per_s)
    return conclude_logs(evidence(0, 0.01, "ranks", tuple(rate / too_short * each for each in rates)), SYSTEM, None, {})


@pytest.mark.parametrize("rates", [(2.0,), (0.5, 2.0, 1.9), (2.0, 0.5, 1.5)], ids=str)
def test_the_ceiling_is_the_highest_rate_of_all(rates: tuple[float, ...]) -> None:
    """The training would be at 200 % of a rate measured beside a load, and is at half of the machine's."""
    assert shares(*rates).metrics["matmul_fraction"].value == pytest.approx(50.0)


@pytest.mark.parametrize(("rates", "low"), [((2.0, 1.9), None), ((2.0, 0.5, 0.4), 12.5), ((0.8, 2.0), 20.0)], ids=str)
def test_a_ceiling_reached_once_may_be_as_much_higher(rates: tuple[float, ...], low: float | None) -> None:
    found = shares(*rates).metrics
    assert found["matmul_fraction"].low == (low if low is None else pytest.approx(low))
    assert found["matmul_fraction"].high == (low if low is None else pytest.approx(50.0))
    assert found["throughput"] == measure(measurement_of(TRAINS, SYSTEM))["throughput"]


@pytest.mark.parametrize("rates", [(2.0,), (2.0, 1.9), (2.0, 0.5), (0.5, 2.0)], ids=str)
def test_step_times_that_are_wrong_by_a_factor_are_found(rates: tuple[float, ...]) -> None:
    problem = known(shares(*rates, too_short=4.0).problem)
    assert problem.kind == "implausible"
    assert "rate of 200 %" in problem.message


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
