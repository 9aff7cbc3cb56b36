"""Launches become lines of a table: a wrong or a failed variant never wins, and nothing is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.training.records import Launch, Line, Record
from benchmarks.gpu.training.rows import Case, Choice
from benchmarks.gpu.training.summary import disagreement, spread, table
from benchmarks.gpu.training.table import markdown


def cases(*gpus: int, row: str = "opt125m") -> list[Case]:
    """Cells of a row on GPUs."""
    variants = {"opt125m": ["torch", "plain_torch", "megatron_sdpa"], "opt350m_sft": ["deepspeed"]}[row]
    choice = Choice(
        rows=[row], variants=variants, gpus=gpus, steps=20, scale="full", device="cuda", options={}
    )  # fmt: skip
    return list(choice.cases())


def launch(variant: str, tokens_per_s: float, *, gpus: int = 1, turn: int = 1, **changes: Any) -> Launch:
    """A good launch, with some of its values replaced."""
    plain = {
        "row": "opt125m", "variant": variant, "gpus": gpus, "turn": turn, "ours": variant in {"torch", "deepspeed"},
        "seconds": 30.0, "startup_s": 20.0 / turn, "tokens_per_s": tokens_per_s, "samples_per_s": tokens_per_s / 2048,
        "tflops_per_gpu": 300.0, "step_seconds": (0.1,) * 20, "losses": (10.8, 8.7), "grad_norms": (2.0, 1.5, 1.2),
    }  # fmt: skip
    return Launch.model_validate({**plain, **changes})


def line(lines: tuple[Line, ...], variant: str, gpus: int = 1) -> Line:
    """One cell's line."""
    (found,) = [each for each in lines if (each.variant, each.gpus) == (variant, gpus)]
    return found


def test_the_best_alternative_is_the_measure() -> None:
    """A ratio is of medians, to the fastest alternative, and only ours has one."""
    launches = [launch("torch", rate, turn=turn) for turn, rate in enumerate((90.0, 120.0, 100.0), start=1)]
    launches += [launch("plain_torch", 80.0), launch("megatron_sdpa", 50.0)]
    lines = table(cases(1), launches)
    ours = line(lines, "torch")
    assert ours.tokens_per_s == spread([90.0, 120.0, 100.0])
    assert ours.best_alternative == "plain_torch"
    assert ours.ratio == pytest.approx(1.25)
    assert ours.startup_first_s == 20.0
    assert ours.startup_warm_s == pytest.approx((20 / 2 + 20 / 3) / 2)
    assert line(lines, "plain_torch").ratio is None
    assert all(each.agrees for each in lines)


@pytest.mark.parametrize(
    "wrong", [{"losses": (10.8, 8.75)}, {"grad_norms": (2.0, 1.2, 1.2)}], ids=["last_loss", "second_norm"]
)
def test_a_variant_that_learns_otherwise_does_not_win(wrong: dict[str, Any]) -> None:
    """When losses or early gradients part, the row says so, and has no ratio."""
    launches = [launch("torch", 200.0, **wrong), launch("plain_torch", 100.0)]
    lines = table(cases(1), launches)
    assert line(lines, "torch").agrees is False
    assert line(lines, "torch").ratio is None
    assert "torch" in (line(lines, "torch").disagreement or "")
    assert line(lines, "megatron_sdpa").agrees is None


def test_what_failed_and_what_was_not_started_have_their_lines() -> None:
    """A failed launch is a line with its error, one that nobody started says so; neither has a rate or a ratio."""
    nothing = {"tokens_per_s": None, "samples_per_s": None, "tflops_per_gpu": None, "losses": (), "grad_norms": ()}
    failed = launch("torch", 1.0).model_copy(update={"error": "rank 0: OutOfMemoryError", **nothing})
    lines = table(cases(1), [failed, launch("plain_torch", 100.0)])
    assert (line(lines, "torch").error, line(lines, "torch").tokens_per_s) == ("rank 0: OutOfMemoryError", None)
    assert line(lines, "torch").ratio is None
    assert line(lines, "megatron_sdpa").error == "not started: the time was up"
    assert line(lines, "plain_torch").error is None


def test_scaling_is_against_one_gpu_of_the_same_record() -> None:
    """Twice the rate on two GPUs is 1; without a rate on one GPU there is none."""
    lines = table(
        cases(1, 2), [launch("torch", 100.0), launch("torch", 190.0, gpus=2), launch("plain_torch", 9, gpus=2)]
    )
    assert line(lines, "torch", 2).scaling == pytest.approx(0.95)
    assert line(lines, "torch", 1).scaling is None
    assert line(lines, "plain_torch", 2).scaling is None


def test_published_numbers_stand_beside_the_same_number_of_gpus() -> None:
    """Samples per second are held against what was published for so many GPUs."""
    launches = [launch("deepspeed", 1.0, row="opt350m_sft", gpus=gpus, samples_per_s=238.0) for gpus in (1, 2)]
    one, two = table(cases(1, 2, row="opt350m_sft"), launches)
    assert one.published is not None
    assert one.published.samples_per_s == 119.0
    assert one.published.ratio == pytest.approx(2.0)
    assert two.published is None


@given(st.dictionaries(st.text(min_size=1), st.floats(1, 12), min_size=1), st.floats(0.1, 10))
def test_equal_variants_never_disagree(losses: dict[str, float], norm: float) -> None:
    """Losses within the tolerance agree, whatever the names; beyond it all names are told."""
    norms = dict.fromkeys(losses, (norm, norm))
    told = disagreement(losses, norms)
    assert (told is None) == (max(losses.values()) - min(losses.values()) <= 0.02)
    assert told is None or all(name in told for name in losses)


def test_the_table_shows_what_must_not_be_overlooked() -> None:
    """Markdown has a row for every line, with errors, disagreements and whether time was up; a record reads back."""
    launches = [launch("torch", 200.0, losses=(10.8, 7.0)), launch("plain_torch", 100.0)]
    record = Record(
        date="2026-01-01T00:00:00+00:00", command="python engines.py", complete=False, seconds=1.0,
        machine={"cpu": "a CPU", "cpus": 2}, versions={"torch": "2.11.0"}, source={}, rules={"ratio": "a rule"},
        recipes={}, launches=tuple(launches), table=table(cases(1), launches),
    )  # fmt: skip
    assert Record.model_validate_json(record.model_dump_json()) == record
    text = markdown(record)
    rows = [row for row in text.splitlines() if row.startswith("| `opt125m`")]
    assert len(rows) == 3
    assert "DISAGREES: last losses torch 7.0000, plain_torch 8.7000" in rows[0]
    assert "ERROR: not started" in rows[2]
    assert "Cut off by its time" in text
    assert len({row.count(" | ") for row in rows}) == 1
