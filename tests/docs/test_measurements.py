"""The numbers of docs/measurements.md agree with one another and with the formula."""

from __future__ import annotations

import re

import pytest

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipes import load_recipes
from pytest_llmbench.judging.flops import flops_per_token
from tests.docs.documents import CHECKOUT

TEXT = (CHECKOUT / "docs" / "measurements.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)`.*\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) % \|$", TEXT, re.MULTILINE)
GPUS = 2
PEAK_TFLOPS = 989.4


def test_there_are_measurements() -> None:
    """The table is found."""
    assert len(ROWS) == TEXT.count(" % |\n")


@pytest.mark.parametrize(("name", "words_per_s", "tflops", "mfu"), ROWS)
def test_a_row_is_consistent(name: str, words_per_s: str, tflops: str, mfu: str) -> None:
    """TFLOP/s per GPU and MFU follow from words/s and the shape, to the digits given."""
    recipe = load_recipes([shipped("recipes")])[name]
    flops = float(words_per_s.replace(",", "")) * flops_per_token(recipe.model, recipe.sequence_length)
    assert flops / 1e12 / GPUS == pytest.approx(float(tflops), abs=0.06)
    assert 100 * flops / 1e12 / GPUS / PEAK_TFLOPS == pytest.approx(float(mfu), abs=0.06)
