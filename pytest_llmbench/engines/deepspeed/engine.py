"""DeepSpeed: OPT of transformers under ZeRO 0 to 3, trained by `ranks.run` on every rank."""

from collections.abc import Iterator

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Expected
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem, layout_problems, precision_problem
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of
from pytest_llmbench.judging.memory import Footprint, State


class DeepSpeedEngine(InProcess):
    """See `base.Engine`."""

    name = "deepspeed"
    entry = "pytest_llmbench.engines.deepspeed.ranks.run:train"
    packages = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "transformers": "transformers"}  # noqa: RUF012 - as is
    extra = "deepspeed"
    options: type[Strict] = DeepSpeedOptions
    ends_early = True

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        # transformers keeps two additional, unused positions.
        number = parameters(recipe.model, recipe.sequence_length) + 2 * recipe.model.hidden_size
        return expected_of(recipe, topology, parameters=number, initial_std=0.02)

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint:
        half = recipe.precision != "fp32"
        states = {
            "none": (State(16), State(24 if half else 16)),
            "optimizer": (State(2, 14), State(4, 16)) if half else (State(4, 12), State(8, 12)),
            "gradients": (State(2, 14), State(2, 16)) if half else (State(4, 12), State(4, 16)),
            "full": (State(0, 16), State(0, 18)),
        }
        least, usual = states[recipe.parallelism.sharding]
        unit = 10 if recipe.parallelism.sharding == "full" else 0
        return Footprint(least=least, usual=usual, activation=26 if recipe.compile else 34, logit=10, unit=unit)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from batch_problem(recipe, topology)
        yield from precision_problem(recipe, topology, ("fp32", "bf16", "fp16"))
        yield from layout_problems(self.name, recipe)
        sharding = recipe.parallelism.sharding
        if recipe.precision == "fp16" and sharding == "none":
            yield (
                "DeepSpeed trains whole models in fp16 without scaling their loss: take bf16, or sharding: optimizer"
            )
        if recipe.compile and sharding == "full":
            yield (
                "engine deepspeed cannot compile a layer whose weights come and go (sharding full): set compile: false"
            )


ENGINE = DeepSpeedEngine()
