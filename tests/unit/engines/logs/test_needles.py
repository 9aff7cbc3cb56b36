"""Lines that hold none of an engine's needles need not be read: they say nothing of steps or of the training."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Place, Script, get_engine
from pytest_llmbench.engines.external import External
from pytest_llmbench.readers.items import EVERY_LINE, Completed, Item, StepLine
from pytest_llmbench.readers.log import LogReader
from tests.support.samples import readable, sample
from tests.support.shipped import shipped_recipes

# A recipe of the engine, and a log.
CASES = {
    "logs/megatron_lm_4_ranks.log": "nlp175b", "logs/metaseq_2_ranks.log": "metaseq125m",
    "nemo/output.log": "azure_gpt3_126m", "logs/megatron_lm_core_0.16.log": "nlp175b",
    "logs/megatron_lm_one_h200.log": "nlp175b", "logs/metaseq_20_updates.log": "metaseq125m",
    "logs/nemo_2.log": "azure_gpt3_126m", "nemo/nemo2_gpt3_126m_nemo_log_globalrank-0.txt": "azure_gpt3_126m",
    "logs/torchtitan_2_ranks.log": "titan_llama31_8b", "logs/deepspeed_chat_step1.log": "chat_350m_bs24_zero0",
    "lambda/opt-13b_1_1xN_batch0001.log": "chat_13b_bs16_zero0",
}  # fmt: skip
ENGINES = ("megatron_lm", "metaseq", "nemo_launcher", "nemo_torchrun", "deepspeed_chat", "torchtitan")


@pytest.mark.parametrize("file", readable(CASES, str))
def test_a_log_says_the_same_by_its_needles(file: str) -> None:
    """Steps, totals, words and claims are those that are read when all lines are."""
    path = sample(file)
    recipe = shipped_recipes()[CASES[file]]
    engine = get_engine(recipe.engine)
    found = engine.read(path, recipe)
    assert found.steps or found.completed or found.world_size or found.claims
    reader = dataclasses.replace(cast("External", engine).log_reader(), needles=EVERY_LINE)
    with mock.patch.object(type(engine), "reader", reader):
        assert repr(engine.read(path, recipe)) == repr(found)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_that_is_a_command_has_needles(name: str) -> None:
    needles = cast("External", get_engine(name)).log_reader().needles
    assert needles.always
    assert needles.first
    assert all(len(needle) > 3 for needle in needles.always)  # the others count up to the first step


class Beads(External):
    """An engine of somebody else, who wrote what the guide asks for."""

    name = "beads"
    proof = "the line `at rest`"
    reader = LogReader(name="beads", dialect=lambda: _parse)

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:  # noqa: ARG002
        return Script(commands=())


def _parse(text: str) -> Iterable[Item]:
    if text == "at rest":
        yield Completed(text)
    elif text.startswith("bead "):
        yield StepLine(step=int(text.removeprefix("bead ")), seconds=0.05)


def test_every_line_is_read_for_an_engine_without_needles(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("bead 1\nbead 2\nat rest\n", encoding="utf-8")
    found = Beads().read(log, shipped_recipes()["opt125m"])
    assert [step.step for step in found.steps] == [1, 2]
    assert found.completed
