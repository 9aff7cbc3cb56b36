"""Plain PyTorch: a decoder trained with DDP or FSDP, by `ranks.run` on every rank."""

from collections.abc import Iterator

from pytest_llmbench.core.recipe.expected import Expected
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.engines.overrides import batch_problem, data_parallel_problems, precision_problem
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of
from pytest_llmbench.judging.memory import Footprint, State, micro_batches


class TorchEngine(InProcess):
    """See `base.Engine`."""

    name = "torch"
    entry = "pytest_llmbench.engines.torch.ranks.run:train"
    packages = {"torch": "PyTorch"}  # noqa: RUF012 - nobody writes to it
    extra = "torch"
    options: type[Strict] = TorchOptions
    ends_early = True
    shapes = DENSE

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        number = parameters(recipe.model, recipe.sequence_length)
        return expected_of(recipe, topology, parameters=number, initial_std=0.006)

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint:
        # Weights, gradients and both moments are fp32; products take 16-bit copies of the weights.
        copy, keeps = 2.0 if recipe.precision == "bf16" else 0.0, micro_batches(recipe, topology.world_size) > 1
        sharding = recipe.parallelism.sharding if topology.world_size > 1 else "none"
        states = {
            # Over micro batches, gradients and copies stay, and DDP averages in buckets beside them.
            "none": (State(16), State(16 + keeps * (copy + 4 * (topology.world_size > 1)))),
            # FSDP keeps gradients whole until the last micro batch.
            "gradients": (State(copy or 4, 16), State((copy or 4) + 4 * keeps, 12 + 4 * (not keeps))),
            "full": (State(0, 16), State(0, 16)),
        }
        least, usual = states[sharding]
        return Footprint(
            least=least, usual=usual, activation=24 + 2 * bool(recipe.model.dropout), logit=8, most_logits=2**28,
            unit=10 if sharding == "full" else 0, embedding=4,
        )  # fmt: skip

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
