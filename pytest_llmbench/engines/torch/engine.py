"""Plain PyTorch: a decoder trained with DDP or FSDP, by `ranks.run` on every rank."""

from collections.abc import Iterator

from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem, data_parallel_problems, precision_problem
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of


class TorchEngine(InProcess):
    """See `base.Engine`."""

    name = "torch"
    entry = "pytest_llmbench.engines.torch.ranks.run:train"
    packages = {"torch": "PyTorch"}  # noqa: RUF012 - nobody writes to it
    extra = "torch"
    options: type[Strict] = TorchOptions
    ends_early = True

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        number = parameters(recipe.model, recipe.sequence_length)
        return expected_of(recipe, topology, parameters=number, initial_std=0.006)

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from batch_problem(recipe, topology)
        yield from precision_problem(recipe, topology, ("fp32", "bf16"))
        yield from data_parallel_problems(self.name, recipe)
        sharding = recipe.parallelism.sharding
        if sharding == "optimizer":
            yield f"recipe {recipe.name}: engine torch shards none, gradients or full, not the optimizer alone"
        if recipe.options.get("residual") == "fp32" and recipe.precision == "bf16" and sharding != "none":
            yield f"recipe {recipe.name}: options.residual: fp32 is for sharding none: what is gathered is bf16"


ENGINE = TorchEngine()
