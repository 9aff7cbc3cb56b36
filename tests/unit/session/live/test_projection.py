"""Projections of a run under way, by logs that are written here."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.session.live.snapshot import LiveTask, Projected
from pytest_llmbench.session.live.writer import Projector, project
from pytest_llmbench.session.script.prepared import PreparedRun, prepare
from tests.conftest import TINY

TOKENS = 8 * 32
BOUND = {"statistic": "throughput", "why": "it is fast", "source": "this test", "date": "2026-01-01"}


@pytest.fixture
def run(tmp_path: Path, unigram: None) -> tuple[PreparedRun, Settings]:
    """A run of 200 steps whose test asks for 2,560 words/s: 0.1 s a step."""
    references = [{"name": "fast", "at_least": "2560 words/s", "applies_to": {"system": "local"}, **BOUND}]
    recipe = Recipe.model_validate({**TINY, "name": "tiny", "steps": 200, "references": references})
    system = load_system("local", list(SYSTEMS.usable().values()))
    settings = Settings(system=system, cluster="local", allocation="session", run_dir=tmp_path, gpus_per_node=0)
    prepared = prepare(RunSpec(key="tiny", recipe=recipe), settings, Session(id="s", folder=tmp_path / "s"))
    assert isinstance(prepared, PreparedRun), prepared
    return prepared, settings


def so_far(steps: int, seconds: float, world_size: int) -> StepSeries:
    """Steps that all ranks have logged, each as long as the others but for a thousandth."""
    rank: dict[str, Any] = {
        "rank": 0, "host": "h", "pid": 1, "local_rank": 0, "device": "cpu", "world_size": world_size, "versions": {},
    }  # fmt: skip
    ranks = tuple(RankInfo(**{**rank, "rank": number, "pid": number + 1}) for number in range(world_size))
    logged = tuple(
        Step(
            step=number, seconds=seconds * (1 + 1e-3 * (-1) ** number), tokens=TOKENS, samples=8,
            loss=4.853 - 0.001 * number, grad_norm=1.0 + 1e-6 * number, ranks=world_size,
        )
        for number in range(1, steps + 1)
    )  # fmt: skip
    return StepSeries(ranks=ranks, steps=logged)


def projected(run: tuple[PreparedRun, Settings], steps: int, seconds: float) -> Projected:
    prepared, settings = run
    return project(prepared, ["fast"], settings, so_far(steps, seconds, prepared.topology.world_size))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 10, 20])
def test_too_few_steps_are_never_a_pass(run: tuple[PreparedRun, Settings], steps: int) -> None:
    early = projected(run, steps, 0.001)
    assert (early.verdict, early.low, early.high) == ("undecided", None, None)
    assert early.why


def test_steps_that_are_fast_enough_are_a_pass_to_come(run: tuple[PreparedRun, Settings]) -> None:
    shown = projected(run, 100, 0.05)
    assert (shown.verdict, shown.statistic, shown.steps) == ("PASS", "throughput", 100), shown
    assert shown.low is not None
    assert shown.low > 2560 == pytest.approx(float(shown.bound.split()[1].replace(",", "")))


def test_steps_that_are_too_slow_are_a_fail_to_come(run: tuple[PreparedRun, Settings]) -> None:
    assert projected(run, 100, 0.2).verdict == "FAIL"


def test_a_bound_inside_of_the_interval_decides_nothing(run: tuple[PreparedRun, Settings]) -> None:
    shown = projected(run, 100, 0.1)
    assert (shown.verdict, shown.bound) == ("undecided", ">= 2,560 words/s")


def test_all_steps_wait_for_their_verdict(run: tuple[PreparedRun, Settings]) -> None:
    assert projected(run, 200, 0.05).verdict == "undecided"


def test_steps_of_some_ranks_do_not_count(run: tuple[PreparedRun, Settings]) -> None:
    prepared, settings = run
    series = so_far(100, 0.05, prepared.topology.world_size)
    series = series.model_copy(update={"steps": tuple(s.model_copy(update={"ranks": 1}) for s in series.steps)})
    shown = project(prepared, ["fast"], settings, series)
    assert (shown.verdict, shown.steps) == ("undecided", 0 if prepared.topology.world_size > 1 else 100)


def test_a_run_without_a_bound_has_its_speed_and_no_verdict(run: tuple[PreparedRun, Settings]) -> None:
    """A test that asks for nothing that is known before it is not guessed at."""
    prepared, settings = run
    shown = project(prepared, [], settings, so_far(100, 0.05, prepared.topology.world_size))
    assert (shown.verdict, shown.bound, shown.statistic) == ("undecided", "", "throughput")
    assert shown.value == pytest.approx(TOKENS / 0.05, rel=0.01)


def test_logs_are_read_again_only_after_more_steps(
    run: tuple[PreparedRun, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking takes a hundredth of the time, and comes back when a run has 15 % more steps."""
    prepared, settings = run
    now, reads = [0.0], []

    def read(_self: object, folder: Path, _recipe: Recipe) -> StepSeries:
        reads.append(folder)
        now[0] += 1.0
        return so_far(40, 0.05, prepared.topology.world_size)

    monkeypatch.setattr(type(prepared.engine), "read", read)
    projector = Projector(settings, lambda _series: ["fast"], clock=lambda: now[0])
    for moment, step, expected in ((0.0, 40, 1), (50.0, 60, 1), (102.0, 45, 1), (103.0, 46, 2)):
        now[0] = moment
        projector.look({"tiny": LiveTask(name="tiny", state="running", step=step, steps=200)}, {"tiny": prepared})
        assert len(reads) == expected
    assert set(projector.last) == {"tiny"}
    projector.forget("tiny")
    assert not projector.last
