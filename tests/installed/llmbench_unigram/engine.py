"""The engine: what a recipe may ask of it, and what its ranks are to show."""

import math
from collections.abc import Iterator
from dataclasses import replace

from llmbench_unigram.defaults import INITIAL_STD
from llmbench_unigram.options import Options
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, Expected
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem
from pytest_llmbench.judging.language_losses import expected_of


class Unigram(InProcess):
    """See `pytest_llmbench.engines.base.Engine`."""

    name = "unigram"
    entry = "llmbench_unigram.ranks:train"
    packages = {}  # noqa: RUF012 - nobody writes to it
    extra = ""
    options = Options
    ends_early = True

    def uncounted(self, recipe: Recipe) -> str:  # noqa: ARG002 - whatever it is
        return "a table of logits is trained, not the decoder of the recipe"

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        due = expected_of(recipe, topology, parameters=recipe.model.vocab_size, initial_std=0.0)
        uniform = math.log(recipe.model.vocab_size)
        return replace(due, layers=0, first_loss=(uniform - INITIAL_STD, uniform + INITIAL_STD))

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:  # noqa: ARG002 - whatever they are
        return {"dropout": None}

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from batch_problem(recipe, topology)
        if recipe.precision != "fp32" or topology.gpus:
            yield f"recipe {recipe.name}: engine unigram trains in fp32 on CPUs"


ENGINE = Unigram()
