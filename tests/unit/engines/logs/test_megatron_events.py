"""Megatron-LM's event files: steps where the log has none, and beside it a second witness."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.megatron_lm import events as megatron_events
from pytest_llmbench.engines.megatron_lm.engine import ENGINE
from tests.support.events import scalars, write
from tests.support.standin import LOGS, RECIPE

LOG = LOGS / "megatron_lm_2_ranks.log"
RUN = validate(Recipe, {"name": "run", "time_limit": 5, **RECIPE}, "run")
Rows = list[tuple[int, str, float]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(LOG, tmp_path / "job.log")
    return tmp_path


def logged(folder: Path) -> tuple[Step, ...]:
    return ENGINE.read(folder / "job.log", RUN).steps


def rows_of(steps: tuple[Step, ...]) -> Iterator[tuple[int, str, float]]:
    """What Megatron-LM writes of these steps: each tag with its twin, which counts samples; the time comes last."""
    for step in steps:
        for tag, value in (
            ("samples vs steps", 8.0 * step.step),
            ("learning-rate", 1e-3),
            ("batch-size", float(step.samples or 0)),
            ("lm loss", step.loss or 0.0),
            ("grad-norm", step.grad_norm or 0.0),
        ):
            yield step.step, tag, value
            yield 8 * step.step, f"{tag} vs samples", value
        if step.seconds is not None:
            yield step.step, "iteration-time", step.seconds
            yield step.step, "throughput", 88.6


def doubts(folder: Path) -> list[str]:
    series = ENGINE.read(folder, RUN)
    return list(ENGINE.doubts(RUN, Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2), series))


def changed(rows: Rows, step: int, tag: str, value: float) -> Rows:
    return [(at, name, value if (at, name) == (step, tag) else old) for at, name, old in rows]


def test_a_file_alone_has_the_steps_of_the_log(folder: Path) -> None:
    """Every number that the log has too, and its tokens; that the run was completed is not in it."""
    steps = logged(folder)
    (folder / "job.log").unlink()
    write(folder, *scalars(rows_of(steps)))
    read = ENGINE.read(folder, RUN)
    assert [(each.step, each.interval, each.samples, each.tokens) for each in read.steps] == [
        (each.step, each.interval, each.samples, each.tokens) for each in steps
    ]
    for name in ("seconds", "loss", "grad_norm"):  # the loss of line 2 is the mean of two, as its time is
        first = 2 if name == "loss" else 0
        assert [getattr(each, name) for each in read.steps[first:]] == pytest.approx(
            [getattr(each, name) for each in steps[first:]]
        )
    assert read.steps[-1].reported["throughput_per_gpu"] == pytest.approx(88.6)
    assert read.steps[-1].reported["consumed_samples"] == 240.0
    assert (read.completed, read.unread, read.restarted) == (None, 0, None)


def test_a_file_beside_a_log_of_the_same_run_changes_nothing(folder: Path) -> None:
    alone = ENGINE.read(folder, RUN)

    def beside() -> StepSeries:
        series = ENGINE.read(folder, RUN)
        assert series.written is not None
        return series.model_copy(update={"written": None, "timed_twice": False})

    rows = list(rows_of(alone.steps))
    whole = write(folder, *scalars(rows)).read_bytes()
    assert beside() == alone
    assert doubts(folder) == []
    write(folder, whole[: len(whole) // 2])
    assert beside() == alone
    write(folder, *scalars(row for row in rows if row[1] != "iteration-time"))
    assert beside() == alone


@pytest.mark.parametrize(("tag", "value", "why"), [
    ("iteration-time", 0.001, "the time in seconds of step 7 is "),
    ("lm loss", 1.0, "the loss of step 7 is "),
    ("grad-norm", 9.0, "the gradient norm of step 7 is "),
    ("batch-size", 16.0, "the batch of step 7 is 8 in its log and 16 in its event file"),
])  # fmt: skip
def test_a_file_that_says_otherwise_is_a_doubt(folder: Path, tag: str, value: float, why: str) -> None:
    write(folder, *scalars(changed(list(rows_of(logged(folder))), 7, tag, value)))
    (doubt,) = doubts(folder)
    assert doubt.startswith(why)
    assert doubt.endswith(f"{value:g} in its event file")


def test_a_line_that_the_log_lost_is_a_doubt(folder: Path) -> None:
    write(folder, *scalars(rows_of(logged(folder))))
    text = LOG.read_text().splitlines(keepends=True)
    (folder / "job.log").write_text("".join(line for line in text if "iteration        7/" not in line))
    assert doubts(folder) == ["its event file has a time of iteration 7, and its log has no such line"]


def test_times_every_so_often_are_means_over_all_between(tmp_path: Path) -> None:
    """Losses come more often, and their mean is the log's; iteration 1 has a time of its own from core 0.16 on."""
    rows: Rows = [(step, "lm loss", 5.0 - 0.1 * step) for step in range(1, 16)]
    rows += [(step, "iteration-time", 0.5) for step in (5, 10, 15)]
    write(tmp_path, *scalars(sorted(rows)))
    read = megatron_events.series(tmp_path)
    assert [(each.step, each.interval) for each in read.steps] == [(5, 5), (10, 5), (15, 5)]
    assert [each.loss for each in read.steps] == pytest.approx([4.7, 4.2, 3.7])
    assert not read.first_apart
    write(tmp_path, *scalars(sorted([*rows, (1, "iteration-time", 3.0)])))
    read = megatron_events.series(tmp_path)
    assert [(each.step, each.interval) for each in read.steps] == [(1, 1), (5, 5), (10, 5), (15, 5)]
    assert read.first_apart


def test_a_file_without_times_has_steps_without_seconds_and_a_folder_without_anything_none(tmp_path: Path) -> None:
    assert megatron_events.series(tmp_path) == StepSeries()
    assert ENGINE.read(tmp_path, RUN).steps == ()
    write(tmp_path, *scalars((step, "lm loss", 5.0) for step in (1, 2, 3)))
    assert [(each.step, each.interval, each.seconds) for each in megatron_events.series(tmp_path).steps] == [
        (1, 1, None), (2, 1, None), (3, 1, None),
    ]  # fmt: skip


def test_what_is_damaged_in_a_file_alone_is_counted(folder: Path) -> None:
    rows = list(rows_of(logged(folder)))
    (folder / "job.log").unlink()
    events = scalars(rows)
    write(folder, *events[:50], events[50][:-1] + b"\0", *events[51:])
    assert ENGINE.read(folder, RUN).unread == 1
    write(folder, *events)
    write(folder, *scalars(changed(rows, 30, "iteration-time", 9.0)), begun=1_700_000_001)
    assert "a second run in the same folder" in (ENGINE.read(folder, RUN).restarted or "")
