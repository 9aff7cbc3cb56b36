"""The numbers of docs/source-systems.md follow from published logs by the engines' rules; every recipe is there."""

import csv
import re
import statistics
from pathlib import Path

import pytest

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.engines.nemo import log
from pytest_llmbench.judging.statistics import TOKENS_OF_RECORD, Measurement, judged_steps, measure
from tests.docs.documents import CHECKOUT
from tests.support.samples import SAMPLES
from tests.support.shipped import shipped_recipes

TEXT = " ".join((CHECKOUT / "docs" / "source-systems.md").read_text(encoding="utf-8").split())
RECIPES = shipped_recipes()


@pytest.fixture
def samples() -> Path:
    """The published logs, which are not part of this project."""
    if not SAMPLES.is_dir():
        pytest.skip(f"no published logs in {SAMPLES}: LLMBENCH_SAMPLES names their folder")
    return SAMPLES


def measured(recipe: Recipe, log: Path) -> dict[str, float]:
    """The engine's statistics of one log, on the nodes that the recipe is for."""
    topology = Topology(nodes=recipe.nodes, gpus_per_node=recipe.gpus_per_node)
    recipe, engine = recipe.on(topology), get_engine(recipe.engine)
    series = engine.read(log, recipe)
    measurement = Measurement(
        recipe=recipe, steps=series.steps, judged=judged_steps(recipe, series.steps), gpus=topology.gpus,
        matmul_flops_per_s=None, peak_flops_per_s=None, totals=series.totals,
    )  # fmt: skip
    return {name: metric.value for name, metric in measure(measurement, statistics_of(engine)).items()}


def test_jscs_lines(samples: Path) -> None:
    """Five lines of 175B, with the first and without it; and the published rate of the long run."""
    found = measured(RECIPES["nlp175b"], samples / "jsc" / "175B_job.out.excerpt.txt")
    for name in ("time_for_20m_tokens_all_lines", "time_for_20m_tokens_without_first_line"):
        assert f"{found[name]:.2f} s" in TEXT, name
    with (samples / "jsc" / "strong_scaling.csv").open(encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["Nodes"] == "96")
    rate = float(row["Tokens/sec"])
    assert f"{row['Tokens/sec']} tokens/s, which are {TOKENS_OF_RECORD / rate:.2f} s" in TEXT
    assert f"{row['Iterations']} iterations" in TEXT


def test_lambdas_log_and_file(samples: Path) -> None:
    """The number, what it is computed from, and the row of the evaluator's file."""
    recipe, folder = RECIPES["chat_350m_bs24_zero0"], samples / "lambda"
    found = measured(recipe, folder / "opt-350m_1_1xN_batch0001.log")
    assert f"{found['reported_throughput']:.4f} samples/s" in TEXT
    factors = re.search(r"24 × 8 × (\d+) / ([\d.]+) is ([\d.]+)\.", TEXT)
    assert factors is not None
    assert 24 * 8 * int(factors[1]) / float(factors[2]) == pytest.approx(float(factors[3]), abs=5e-4)
    row = (folder / "1node_1xN_opt-350m_bs24_zero0.csv").read_text(encoding="utf-8").splitlines()[1]
    assert f"`{row}`" in TEXT


def test_nemos_event_file(samples: Path) -> None:
    (file,) = (samples / "tensorboard").glob("nemo2-gpt3-126m*")
    seconds = [step.seconds for step in log.series(file).steps if step.seconds is not None]
    assert f"a 126M model for {len(seconds)} steps, that is {statistics.fmean(seconds[5:]):.4f} s" in TEXT
    assert f"its first value is {seconds[0]:.4f} s" in TEXT


def test_azures_published_times(samples: Path) -> None:
    with (samples / "azure" / "azure_nemo_22.06_time_per_step.csv").open(encoding="utf-8") as file:
        rows = {(row["model"], row["nodes"]): row["time_per_step_s"] for row in csv.DictReader(file)}
    small = [rows["126M", nodes] for nodes in ("1", "2", "4", "8")]
    large = [rows["175B", nodes] for nodes in ("32", "96", "128")]
    for said in (small, large):
        assert f"{', '.join(said[:-1])} and {said[-1]} s" in TEXT


@pytest.mark.parametrize("path", sorted(shipped("recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_a_command_is_there(path: Path) -> None:
    names = [name for name in read_yaml(path)["recipes"] if get_engine(RECIPES[name].engine).kind == "command"]
    few = names if len(names) <= 10 else names[:1]  # `llmbench list recipes` prints those of a large family
    assert [name for name in few if f"`{name}`" not in TEXT] == []
    assert not names or f"(../suites/recipes/{path.name})" in TEXT
