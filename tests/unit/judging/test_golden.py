"""Golden losses: from repeats, with the tolerance that the repeats allow, and what damage they let pass: none."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError, RunError
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.judging.golden import GoldenLosses, Losses, deviation, golden_losses

# A real run on one H200.
REAL = RunRecord.read(Path(__file__).parents[2] / "data" / "h200" / "runs" / "opt125m" / "record.json")
STEPS = 50
NOISE = ("white", "walk", "chaos")


def true_losses(seed: int) -> list[float]:
    """A training that learns, whose batches are unlike."""
    rng = random.Random(seed)
    return [3 + 4 * math.exp(-step / 20) + 0.05 * rng.gauss(0, 1) for step in range(STEPS)]


def repeated(base: Sequence[float], noise: str, rng: random.Random) -> list[float]:
    """The same training again: other last bits at first, which grow in the way of `chaos`."""
    found, away = [], 0.0
    for loss in base:
        if noise == "white":
            away = 1e-3 * rng.gauss(0, 1)
        elif noise == "walk":
            away += 1e-4 * rng.gauss(0, 1)
        else:
            away = away * 1.15 + 1e-7 * rng.gauss(0, 1) if abs(away) < 3e-3 else 3e-3 * rng.gauss(0, 1)
        found.append(loss + away)
    return found


def record(losses: Sequence[float | None], **changes: object) -> RunRecord:
    steps = [REAL.steps[0].model_copy(update={"step": i, "loss": loss}) for i, loss in enumerate(losses, start=1)]
    return REAL.model_copy(update={"steps": tuple(steps), **changes})


def golden_of(*curves: Sequence[float], resolution: float = 0.0) -> GoldenLosses:
    return golden_losses({f"run{i}": record(curve) for i, curve in enumerate(curves)}, "2026-11-23", resolution)


def repeats(seed: int, noise: str, count: int) -> tuple[list[float], list[list[float]]]:
    rng, base = random.Random(seed), true_losses(seed)
    return base, [repeated(base, noise, rng) for _ in range(count)]


def differs(golden: GoldenLosses, losses: Sequence[float | None]) -> bool:
    """Whether a run with these losses is not as the golden ones."""
    return bool(deviation(record(losses), golden).beyond)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("count", [4, 5])
def test_another_repeat_is_as_the_golden_ones(noise: str, count: int) -> None:
    """In about 99 % of cases, whatever the noise is like; the bound here leaves room for the luck of 200."""
    wrong = 0
    for seed in range(200):
        _, curves = repeats(seed, noise, count + 1)
        wrong += differs(golden_of(*curves[:-1]), curves[-1])
    assert wrong <= 6


DAMAGES: dict[str, Callable[[list[float]], list[float]]] = {
    "one step late": lambda losses: [losses[0], *losses[:-1]],
    "one step early": lambda losses: [*losses[1:], losses[-1]],
    "constant": lambda losses: [losses[0]] * STEPS,
    "its mean": lambda losses: [sum(losses) / STEPS] * STEPS,
    "the first step alone": lambda losses: [losses[0], *([0.0] * (STEPS - 1))],
    "the last step": lambda losses: [*losses[:-1], losses[-1] + 0.5],
    "a step in the middle": lambda losses: [*losses[:20], losses[20] - 0.5, *losses[21:]],
    "twice the rate": lambda losses: [losses[min(2 * i, STEPS - 1)] for i in range(STEPS)],
    "slowly away": lambda losses: [loss + 0.01 * i for i, loss in enumerate(losses)],
    "another seed": lambda losses: true_losses(round(1e6 * losses[0])),
    "backwards": lambda losses: losses[::-1],
}


@given(st.integers(0, 10_000), st.sampled_from(NOISE), st.integers(4, 6), st.sampled_from(sorted(DAMAGES)))
def test_a_damaged_curve_does_not_pass(seed: int, noise: str, count: int, damage: str) -> None:
    _, curves = repeats(seed, noise, count + 1)
    assert differs(golden_of(*curves[:-1]), DAMAGES[damage](curves[-1]))


def test_a_shift_that_lasts_is_found() -> None:
    """From a step on, all losses are four standard deviations off, and none of them is too far by itself."""
    found = 0
    for seed in range(40):
        _, curves = repeats(seed, "white", 6)
        golden = golden_of(*curves[:-1])
        shifted = [loss + 4e-3 * (i >= 20) for i, loss in enumerate(curves[-1])]
        told = deviation(record(shifted), golden)
        found += bool(told.beyond)
        assert not told.lasting or (told.away > told.tolerance and len(told.beyond) >= 8)
    assert found >= 38


def test_steps_before_the_repeats_part_have_a_tolerance() -> None:
    rng, base = random.Random(1), true_losses(1)
    curves = [[*base[:30], *(loss + 1e-4 * rng.gauss(0, 1) for loss in base[30:])] for _ in range(4)]
    early = [*base[:3], *(loss + 1e-6 for loss in base[3:])]
    golden = golden_of(*curves)
    assert not differs(golden, early)
    assert differs(golden, [*base[:3], base[3] + 0.01, *base[4:]])


@given(st.integers(0, 10_000), st.integers(0, STEPS - 1), st.booleans())
def test_runs_of_the_same_bits_allow_no_other_bit(seed: int, step: int, up: bool) -> None:
    base = true_losses(seed)
    golden = golden_of(base, base, base)
    assert golden.exact
    assert not differs(golden, base)
    other = [*base]
    other[step] = math.nextafter(base[step], math.inf if up else 0.0)
    found = deviation(record(other), golden)
    assert (found.step, found.beyond, found.tolerance) == (step + 1, (step + 1,), 0.0)


def test_a_printed_loss_has_as_many_bits_as_it_has_digits() -> None:
    """A framework's log may round the same loss up or down."""
    base = [round(loss, 3) for loss in true_losses(1)]
    golden = golden_of(base, base, base, resolution=1e-3)
    assert not golden.exact
    assert not differs(golden, [loss + 0.999e-3 for loss in base])
    assert differs(golden, [loss + 2e-3 for loss in base])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_does_not_pass(value: float) -> None:
    _, curves = repeats(1, "white", 4)
    golden, broken = golden_of(*curves), [*curves[0][:7], value, *curves[0][8:]]
    found = deviation(record(broken), golden)
    assert (found.step, found.beyond) == (8, (8,))
    with pytest.raises(ConfigError, match=r"run2 has no loss, or none that is a number, at step 8"):
        golden_of(*curves[:2], broken)


@pytest.mark.parametrize("steps", [1, STEPS - 1, STEPS + 1])
def test_other_steps_cannot_be_compared(steps: int) -> None:
    """A shorter curve is no part of the golden one, and a longer one goes on for reasons of its own."""
    base, curves = repeats(1, "white", 4)
    losses = [*base, *base][:steps]
    with pytest.raises(RunError, match=f"losses of {steps} steps, up to {steps}"):
        deviation(record(losses), golden_of(*curves))
    with pytest.raises(RunError, match="compare the same steps"):
        deviation(record([*base[:-1], None]), golden_of(*curves))
    with pytest.raises(ConfigError, match="different steps"):
        golden_of(*curves[:2], losses)


RECIPE = REAL.recipe
OTHERS = {
    "recipe": record([], recipe=RECIPE.model_copy(update={"name": "other"})),
    "recipe.data": record([], recipe=RECIPE.model_copy(update={"data": RECIPE.data.model_copy(update={"seed": 2})})),
    "recipe.precision": record([], recipe=RECIPE.model_copy(update={"precision": "fp32"})),
    "recipe.parallelism": record(
        [], recipe=RECIPE.model_copy(update={"parallelism": RECIPE.parallelism.model_copy(update={"tensor": 2})})
    ),
    "recipe.micro_batch_size": record([], recipe=RECIPE.model_copy(update={"micro_batch_size": 8})),
    "ranks": record([], ranks=2),
    "nodes": record([], nodes=2),
    "device": record([], device="NVIDIA B200"),
}


@pytest.mark.parametrize("fact", OTHERS)
def test_golden_losses_of_another_training_are_refused(fact: str) -> None:
    base, curves = repeats(1, "white", 4)
    other = record(base).model_copy(
        update={name: getattr(OTHERS[fact], name) for name in ("recipe", "ranks", "nodes", "device")}
    )
    with pytest.raises(RunError, match=f"{fact} ") as caught:
        deviation(other, golden_of(*curves))
    assert caught.value.kind == "other_training"


def test_too_few_runs_make_none() -> None:
    """Three that differ show too little of how much the next one may: about one in 100 good ones would be refused."""
    _, curves = repeats(1, "white", 3)
    with pytest.raises(ConfigError, match="at least 3"):
        golden_of(*curves[:2])
    with pytest.raises(ConfigError, match=r"the 3 runs differ: golden losses need at least 4 runs that differ"):
        golden_of(*curves)


def test_runs_that_are_not_alike_make_none() -> None:
    """One is unlike the others; two have the same bits, so one is wrong or a copy; or they differ by all they learn."""
    _, curves = repeats(1, "white", 4)
    odd = [loss + 0.01 * i for i, loss in enumerate(curves[3])]
    with pytest.raises(ConfigError, match="run3 differs from the other runs by"):
        golden_of(*curves[:3], odd)
    base = true_losses(1)
    other = [*base[:30], *(loss + 1e-9 for loss in base[30:])]
    with pytest.raises(ConfigError, match="run0 and run1 are the same in every bit, and run2 differs from step 31 on"):
        golden_of(base, base, other, [loss + 1e-9 for loss in base])
    rng, base = random.Random(1), true_losses(1)
    with pytest.raises(ConfigError, match="a run that learns nothing would pass"):
        golden_of(*([loss + rng.gauss(0, 2) for loss in base] for _ in range(4)))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    _, curves = repeats(1, "chaos", 4)
    golden = golden_of(*curves)
    path = tmp_path / "golden.json"
    path.write_text(golden.model_dump_json())
    assert GoldenLosses.read(path) == golden
    assert Losses([record(curves[0])]) in golden
    path.write_text(golden.model_dump_json()[:-20])
    with pytest.raises(ConfigError, match="no golden losses"):
        GoldenLosses.read(path)
    exact = golden.model_copy(update={"exact": True})
    path.write_text(exact.model_dump_json())
    with pytest.raises(ConfigError, match="a tolerance is 0 in all steps"):
        GoldenLosses.read(path)
    path.write_text(golden.model_copy(update={"steps": golden.steps[::-1]}).model_dump_json())
    with pytest.raises(ConfigError, match="in order"):
        GoldenLosses.read(path)


def test_each_of_several_runs_has_to_be_alike() -> None:
    _, curves = repeats(1, "white", 4)
    golden = golden_of(*curves)
    losses = Losses([record(curves[0], key="a"), record([loss + 1 for loss in curves[1]], key="b")])
    assert losses not in golden
    assert losses.worst is not None
    assert losses.worst.run == "b"
    with pytest.raises(TypeError, match=r"write `run.losses in GoldenLosses.read"):
        _ = 7 in golden
