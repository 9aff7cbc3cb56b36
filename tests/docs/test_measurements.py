"""The records of docs/measurements are whole and listed; thresholds that were scaled follow from theirs."""

import math
import re
from pathlib import Path
from statistics import median
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
    """The page shows title, hardware and result; the name has the date; rows have as many cells as columns."""
    record = read_record(path)
    line = f"| [{record['title']}]({path.name}) | {record['hardware']} | {record['result']} |"
    assert line in (FOLDER / "index.md").read_text(encoding="utf-8")
    assert path.stem.split("_")[2] == record["date"]
    assert all(len(row) == len(table["columns"]) for table in record.get("tables", ()) for row in table["rows"])


def test_a_goal_without_a_measurement_says_so() -> None:
    """A reached number has a unit; any other cell has words."""
    for row in read_record(FOLDER / "goals_h200_2026-11-27.yaml")["tables"][0]["rows"]:
        for cell in row[4:]:
            assert re.match(r"not measured$|unknown: \w|[\d,.]+ (tokens/s|TFLOP/s|J/token|%)", cell), row[0]


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


def results_of_mlperf() -> dict[tuple[str, str], list[tuple[str, float]]]:
    """The rate of each published result, by its recipe and GPUs; a second publication of the same logs is left out."""
    results: dict[tuple[str, str], list[tuple[str, float]]] = {}
    table, _ = read_record(FOLDER / "mlperf-results_gpus_2026-11-27.yaml")["tables"]
    for _, name, gpus, recipe, runs, *rates in table["rows"]:
        own, published = rates[1], rates[-1].split()[0]
        if runs != "0" or "tyche" in name:
            results.setdefault((recipe.strip("`"), gpus), []).append((name, float((own or published).replace(",", ""))))
    return results


def test_the_references_of_mlperf_are_95_percent_of_the_median_result() -> None:
    results = results_of_mlperf()
    bounds = {
        (recipe.name, f"{wanted.gpus} × {wanted.gpu}"): reference.at_least.value
        for recipe in shipped_recipes().values() if recipe.engine == "mlperf"
        for reference in recipe.references if (wanted := reference.applies_to) and reference.at_least
    }  # fmt: skip
    assert bounds.keys() == results.keys()
    assert sum(map(len, results.values())) == 59  # of 61, as two are the same logs again
    for place, bound in bounds.items():
        assert bound == pytest.approx(0.95 * median([rate for _, rate in results[place]]), rel=0.004), place


SLOWEST = {"Lambda gb300_n18"}
SLOWER = {*SLOWEST, "Cisco 1xC885A", "Lenovo SR680aV4", "GigaComputing G893"}


@pytest.mark.parametrize(("tolerance", "slower"), [
    (0.05, SLOWEST), (0.02, SLOWER),
    (0.01, {*SLOWER, "Dell 2xXE9680Lx8B200", "Dell XE9785L", "Nebius nebius_b200_n1"}),
])  # fmt: skip
def test_results_of_a_recipe_are_judged_by_the_others(tolerance: float, slower: set[str]) -> None:
    """Between recipes rates differ by 20 to 40 %; within one, only these are slower than the others by more."""
    found = set()
    for results in results_of_mlperf().values():
        for name, rate in results:
            others = [other for system, other in results if system != name]
            if others and rate < (1 - tolerance) * median(others):
                found.add(name)
    assert {next((known for known in slower if name.startswith(known)), name) for name in found} == slower
