"""The rows of the table of training speeds, and what the command line makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.profiling.floors import RULES, floors
from benchmarks.gpu.training.measuring import flops_per_token
from benchmarks.gpu.training.rows import ALTERNATIVES, Case, Choice, load, parse_options
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import SCALES, Scale
from pytest_llmbench.core.recipe.topology import Device
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.judging.flops import flops_per_token as flops_of_palm


def chosen(**changes: Any) -> list[Case]:
    """The cells of a command line on GPUs, with some of its values replaced."""
    plain: Mapping[str, Any] = {
        "rows": ["opt125m"], "variants": ["torch"], "gpus": [1], "steps": 20, "scale": "full", "device": "cuda",
        "options": {},
    }  # fmt: skip
    return list(Choice(**{**plain, **changes}).cases())


def test_every_variant_has_an_engine() -> None:
    """Every recipe names an engine of ours or an alternative, and all variants of a row train one model alike."""
    by_row: dict[str, set[tuple[object, ...]]] = {}
    for name, recipe in load("full").items():
        row, variant = name.rsplit("-", 1)
        assert recipe.engine == variant
        assert variant in {*ENGINES.names(), *ALTERNATIVES}
        batch = recipe.global_batch_size or recipe.micro_batch_size * (recipe.gradient_accumulation_steps or 0)
        alike = (recipe.model, recipe.sequence_length, recipe.optimizer, recipe.data, recipe.precision, batch)
        by_row.setdefault(row, set()).add(alike)
    assert {row: len(alike) for row, alike in by_row.items()} == dict.fromkeys(by_row, 1)


def test_the_batch_grows_with_the_gpus() -> None:
    """A micro batch of every GPU makes one step; a variant that a row does not have has no cell."""
    cases = chosen(gpus=[1, 2, 8], variants=["torch", "deepspeed"])
    assert [(case.variant, case.gpus, case.recipe.global_batch_size) for case in cases] == [
        ("torch", 1, 32), ("torch", 2, 64), ("torch", 8, 256),
    ]  # fmt: skip


def test_a_layer_is_shared_by_all_gpus() -> None:
    """Tensor parallelism takes the GPUs there are, and a single one has nobody to share with."""
    cases = chosen(rows=["slice175b"], variants=["megatron_core"], gpus=[1, 2, 4, 8])
    assert [(case.gpus, case.recipe.parallelism.tensor) for case in cases] == [(gpus, gpus) for gpus in (2, 4, 8)]
    assert {case.recipe.global_batch_size for case in cases} == {8}


def test_options_change_one_variant() -> None:
    """Keys of recipes are theirs, all others the engine's options, and a label makes a variant of its own."""
    options = parse_options(
        ["torch:big.micro_batch_size=64", "torch:big.parallelism.sharding=full", "torch:big.attention=cudnn"]
    )
    plain, big = chosen(variants=["torch", "torch:big"], options=options)
    assert (plain.recipe.micro_batch_size, plain.recipe.options) == (32, {})
    assert (big.recipe.micro_batch_size, big.recipe.options) == (64, {"attention": "cudnn"})
    assert big.recipe.parallelism.sharding == "full"


@pytest.mark.parametrize(
    "changes",
    [{"rows": ["opt126m"]}, {"variants": ["pytorch"]}, {"options": {"deepspeed": {"loss_scale": "64"}}}],
    ids=["row", "variant", "option"],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any]) -> None:
    """A word that means nothing ends the command with the legal ones."""
    with pytest.raises(ConfigError, match="legal: "):
        chosen(**changes)


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_can_run(scale: Scale, tmp_path: Path) -> None:
    """On one to eight GPUs, no engine refuses a recipe of the table."""
    names = [name.rsplit("-", 1) for name in load(scale)]
    rows, variants = (sorted(set(each)) for each in zip(*names, strict=True))
    device: Device = "cuda" if scale == "full" else "cpu"
    cases = chosen(rows=rows, variants=variants, gpus=[1, 2, 4, 8], scale=scale, device=device)
    entries = {case.task(tmp_path).entry for case in cases if not case.ours or case.engine.missing() is None}
    assert set(ALTERNATIVES.values()) < entries


@pytest.mark.parametrize("text", ["torch", "torch=1", "torch.=1", ".attention=1", "torch.attention"])
def test_an_option_has_a_form(text: str) -> None:
    """What is no VARIANT.KEY=VALUE is refused, with the form."""
    with pytest.raises(ConfigError, match=r"VARIANT\.KEY=VALUE"):
        parse_options([text])


def test_flops_leave_out_half_of_the_attention() -> None:
    """Causal attention is half of what PaLM's formula counts."""
    (case,) = chosen()
    model = case.recipe.model
    half = 6.0 * model.layers * model.hidden_size * case.recipe.sequence_length
    assert flops_per_token(case.recipe) == pytest.approx(flops_of_palm(model, case.recipe.sequence_length) - half)


def test_floors_of_products_are_the_flops() -> None:
    """The parts' FLOPs add up to those of the whole step, but for norms and biases."""
    (case,) = chosen(gpus=[2])
    least = floors(case.recipe, 2, flops_per_s=1.0, bytes_per_s=1.0)
    assert least.keys() == RULES.keys()
    flops = sum(least[part] for part in ("matrix products", "attention", "head and cross entropy"))
    assert flops == pytest.approx(flops_per_token(case.recipe) * case.recipe.tokens_per_step / 2, rel=2e-3)
