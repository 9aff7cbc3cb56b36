"""The numbers of docs/measurements agree with one another and with the formula."""

from __future__ import annotations

import re

import pytest

from benchmarks.gpu.training.measuring import flops_per_token as causal_flops_per_token
from benchmarks.gpu.training.rows import load
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.judging.flops import flops_per_token
from tests.docs.documents import CHECKOUT

TEXT = "\n".join(path.read_text("utf-8") for path in sorted((CHECKOUT / "docs" / "measurements").glob("*.md")))
ROWS = re.findall(r"^\| `([\w.]+)`.*\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) % \|$", TEXT, re.MULTILINE)
GPUS = 2
PEAK_TFLOPS = 989.4
# Of benchmarks/gpu/training/engines.py: on one GPU, with how many launches, and on four, with the scaling.
ON_ONE = re.findall(r"^\| `(opt\w+\.?\w+)` \| `\w+` \| ([\d,]+) \([\d, to]+\), \d \| (\d+) \|", TEXT, re.MULTILINE)
ON_FOUR = re.findall(r"^\| `(opt\w+\.?\w+)` \| .* \| ([\d,]+) \| (\d+) \| 0\.\d{3} \|$", TEXT, re.MULTILINE)


def test_there_are_measurements() -> None:
    """The table is found."""
    assert len(ROWS) == TEXT.count(" % |\n")
    assert (len(ON_ONE), len(ON_FOUR)) == (10, 4)


@pytest.mark.parametrize(("name", "words_per_s", "tflops", "mfu"), ROWS)
def test_a_row_is_consistent(name: str, words_per_s: str, tflops: str, mfu: str) -> None:
    """TFLOP/s per GPU and MFU follow from words/s and the shape, to the digits given."""
    recipe = load_recipes([shipped("recipes")])[name]
    flops = float(words_per_s.replace(",", "")) * flops_per_token(recipe.model, recipe.sequence_length)
    assert flops / 1e12 / GPUS == pytest.approx(float(tflops), abs=0.06)
    assert 100 * flops / 1e12 / GPUS / PEAK_TFLOPS == pytest.approx(float(mfu), abs=0.06)


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "tflops", "gpus"), [(*row, 1) for row in ON_ONE] + [(*row, 4) for row in ON_FOUR]
)
def test_a_benchmark_is_consistent(name: str, tokens_per_s: str, tflops: str, gpus: int) -> None:
    """So it is where half the attention is counted, as the benchmarks do."""
    flops = float(tokens_per_s.replace(",", "")) * causal_flops_per_token(load("full")[f"{name}-torch"])
    assert flops / 1e12 / gpus == pytest.approx(float(tflops), abs=0.6)
