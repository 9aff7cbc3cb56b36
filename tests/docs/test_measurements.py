"""The records of docs/measurements are whole and listed; thresholds that were scaled follow from theirs."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.documents import CHECKOUT
from tests.support.shipped import shipped_recipes

FOLDER = CHECKOUT / "docs" / "measurements"
RECORDS = sorted(FOLDER.glob("*.yaml"))
GPU_OF = {"H100": "h100", "A100-80GB": "a100_80gb", "A100-40GB": "a100_40gb", "H200": "h200"}


def read_record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return record


def scaled() -> list[list[str]]:
    """Rows of published trainings: the recipe, the GPUs, what each reached, the factors, and the bounds that follow."""
    (table,) = (
        table
        for table in read_record(FOLDER / "references_gpus_2026-11-23.yaml")["tables"]
        if table["columns"][:2] == ["Recipe", "GPU"] and "Factors" in table["columns"]
    )
    rows: list[list[str]] = table["rows"]
    return rows


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_whole_and_listed(path: Path) -> None:
    """The page shows its title, hardware, date and result; its tables have as many cells in each row as columns."""
    record = read_record(path)
    line = f"| [{record['title']}]({path.name}) | {record['hardware']} | {record['date']} | {record['result']} |"
    assert line in (FOLDER / "index.md").read_text(encoding="utf-8")
    assert path.stem.split("_")[2] == record["date"]
    assert all(len(row) == len(table["columns"]) for table in record.get("tables", ()) for row in table["rows"])


def test_a_goal_without_a_measurement_says_so() -> None:
    """A reached number has a unit, or the name of the record that has it."""
    (table,) = read_record(FOLDER / "goals_h200_2026-11-27.yaml")["tables"]
    titles = {f"(*{read_record(path)['title']}*)" for path in RECORDS}
    for row in table["rows"]:
        for cell in row[4:7]:
            assert cell == "not measured" or re.search(r"\d (K )?(tokens/s|TFLOP/s|J/token)", cell)
            assert {*re.findall(r"\(\*.*?\*\)", cell)} <= titles


@pytest.mark.parametrize("row", scaled(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_scaled_bound_follows_from_what_is_published(row: list[str]) -> None:
    name, gpus, published, factors, bounds = row
    references = {each.name: each for each in shipped_recipes()[name.strip("`")].references}
    numbers = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]{4,}", published)]
    for number, bound in zip(numbers, bounds.split(", "), strict=True):
        exact = number * math.prod(map(float, factors.split("×")))
        assert 0.96 * exact <= float(bound.strip().removesuffix("K")) * 1e3 <= exact
    for number, gpu in enumerate(re.findall(r"H100|H200|A100-\d\dGB", gpus)):
        at_least = references[GPU_OF[gpu]].at_least
        assert at_least is not None
        assert f"{at_least.value / 1e3:g}K" == bounds.split(", ")[min(number, len(numbers) - 1)].strip()
