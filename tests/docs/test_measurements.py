"""The numbers of docs/measurements agree with one another and with the formula."""

from __future__ import annotations

import math
import re

import pytest

from pytest_llmbench.judging.flops import flops_per_token
from tests.docs.documents import CHECKOUT
from tests.support.shipped import shipped_recipes

TEXT = "\n".join(path.read_text("utf-8") for path in sorted((CHECKOUT / "docs" / "measurements").glob("*.md")))
ROWS = re.findall(r"^\| `([\w.]+)`.*\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) % \|$", TEXT, re.MULTILINE)
GPUS = 2
PEAK_TFLOPS = 989.4
# Of published trainings: the recipe, the GPUs, what each reached, the factors, and the bounds that come of it.
SCALED = re.findall(r"^\| `([\w.]+)` \| ([HA]100[^|]*) \| ([^|]+) \| ([\d.× ]+) \| ([\d.K, ]+) \|$", TEXT, re.MULTILINE)
GPU_OF = {"H100": "h100", "A100-80GB": "a100_80gb", "A100-40GB": "a100_40gb", "H200": "h200"}


@pytest.mark.parametrize(("name", "gpus", "published", "factors", "bounds"), SCALED)
def test_a_scaled_bound_follows_from_what_is_published(
    name: str, gpus: str, published: str, factors: str, bounds: str
) -> None:
    """It is rounded down, by less than 4 %, and the recipe has it."""
    assert len(SCALED) == 9
    references = {each.name: each for each in shipped_recipes()[name].references}
    numbers = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]{4,}", published)]
    for number, bound in zip(numbers, bounds.split(", "), strict=True):
        scaled = number * math.prod(map(float, factors.split("×")))
        assert 0.96 * scaled <= float(bound.strip().removesuffix("K")) * 1e3 <= scaled
    for number, gpu in enumerate(re.findall(r"H100|H200|A100-\d\dGB", gpus)):
        at_least = references[GPU_OF[gpu]].at_least
        assert at_least is not None
        assert f"{at_least.value / 1e3:g}K" == bounds.split(", ")[min(number, len(numbers) - 1)].strip()


def test_there_are_measurements() -> None:
    """The table is found."""
    assert len(ROWS) == TEXT.count(" % |\n")


@pytest.mark.parametrize(("name", "words_per_s", "tflops", "mfu"), ROWS)
def test_a_row_is_consistent(name: str, words_per_s: str, tflops: str, mfu: str) -> None:
    """TFLOP/s per GPU and MFU follow from words/s and the shape, to the digits given."""
    recipe = shipped_recipes()[name]
    flops = float(words_per_s.replace(",", "")) * flops_per_token(recipe.model, recipe.sequence_length)
    assert flops / 1e12 / GPUS == pytest.approx(float(tflops), abs=0.06)
    assert 100 * flops / 1e12 / GPUS / PEAK_TFLOPS == pytest.approx(float(mfu), abs=0.06)
