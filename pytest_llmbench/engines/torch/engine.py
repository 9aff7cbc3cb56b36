"""Plain PyTorch: a decoder trained with DDP or FSDP, by `ranks.run` on every rank."""

from collections.abc import Iterator

from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import Parallelism, Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem, precision_problem
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
        yield from _unsupported(recipe)


def _unsupported(recipe: Recipe) -> Iterator[str]:
    asked, plain = recipe.parallelism, Parallelism()
    for field in ("tensor", "pipeline", "virtual_pipeline", "sequence"):
        if getattr(asked, field) != getattr(plain, field):
            yield f"recipe {recipe.name}: engine torch has no {field} parallelism; engine megatron_core has"
    if asked.sharding == "optimizer":
        yield f"recipe {recipe.name}: engine torch shards none, gradients or full, not the optimizer alone"
    if asked.activation_checkpointing == "selective":
        yield f"recipe {recipe.name}: engine torch checkpoints none or full, not selective"
    if recipe.model.positions != "learned":
        yield f"recipe {recipe.name}: engine torch has learned positions only; engine megatron_core has rope"
    if recipe.options.get("residual") == "fp32" and recipe.precision == "bf16" and asked.sharding != "none":
        yield f"recipe {recipe.name}: options.residual: fp32 is for sharding none: what is gathered is bf16"
    if recipe.optimizer.decay != "linear":
        yield f"recipe {recipe.name}: engine torch decays the learning rate linearly only"


ENGINE = TorchEngine()
