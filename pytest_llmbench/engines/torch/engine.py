"""Plain PyTorch: a decoder trained with DDP or FSDP, and tensor parallelism, by `ranks.run` on every rank."""

from collections.abc import Iterator

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, Expected, Span
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.in_process import InProcess, installed
from pytest_llmbench.engines.overrides import batch_problem, layout_problems, precision_problem
from pytest_llmbench.engines.torch.footprint import footprint
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.judging.flops import parameters
from pytest_llmbench.judging.language_losses import expected_of
from pytest_llmbench.judging.memory import Footprint

_ROW = 8  # elements of 16 bits, which the kernel of grouped products loads together
_EIGHT_BIT_TILE = 16  # sides of matrices that a GPU multiplies in 8 bits are multiples of it


class TorchEngine(InProcess):
    """See `base.Engine`."""

    name = "torch"
    entry = "pytest_llmbench.engines.torch.ranks.run:train"
    packages = {"torch": "PyTorch"}  # noqa: RUF012 - nobody writes to it
    extra = "torch"
    options: type[Strict] = TorchOptions
    ends_early = True
    shapes = DENSE | {"parallelism.activation_checkpointing", "model.experts"}

    def expected(self, recipe: Recipe, topology: Topology) -> Expected:
        number = parameters(recipe.model, recipe.sequence_length)
        return expected_of(recipe, topology, parameters=number, initial_std=0.006)

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        return footprint(recipe, topology)

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        if recipe.parallelism.activation_checkpointing != "auto":
            return {}
        of_copy = recipe.samples_per_step * recipe.parallelism.tensor // topology.world_size
        return {"activation_checkpointing": None, "micro_batch_size": Span(recipe.micro_batch_size, of_copy)}

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        chosen = {info.training.activation_checkpointing for info in series.ranks if info.training is not None}
        if recipe.parallelism.activation_checkpointing == "auto" and chosen not in ({"none"}, {"full"}):
            yield f"the ranks recompute {listed(map(str, chosen))}, which activation_checkpointing: auto never chooses"

    def missing(self, recipe: Recipe | None = None) -> str | None:
        absent = super().missing(recipe)
        if absent is None and recipe is not None and recipe.precision == "fp8" and not installed("torchao"):
            return "engine torch needs torchao for precision fp8: pip install 'pytest-llmbench[fp8]'"
        return absent

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from batch_problem(recipe, topology)
        yield from precision_problem(recipe, topology, ("fp32", "bf16", "fp8"))
        if recipe.precision == "fp8":
            yield from _indivisible(recipe)
        yield from layout_problems(self.name, recipe, ("pipeline", "virtual_pipeline"))
        yield from _unsplit(recipe, topology)
        yield from _unmixed(recipe, topology)
        if recipe.parallelism.sharding == "optimizer":
            yield "engine torch shards none, gradients or full, not the optimizer alone"


def _unsplit(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield what tensor-parallel ranks cannot share."""
    layout, model = recipe.parallelism, recipe.model
    if layout.sequence != (layout.tensor > 1):
        yield f"engine torch splits the sequence with the matrices: set sequence: {str(layout.tensor > 1).lower()}"
    shared = {
        "ranks": topology.world_size, "attention_heads": model.attention_heads, "query_groups": model.key_value_heads,
        "feed_forward_size": model.feed_forward_width, "vocab_size": model.vocab_size,
        "sequence_length": recipe.sequence_length,
    }  # fmt: skip
    if odd := [f"{name} {number}" for name, number in shared.items() if number % layout.tensor]:
        yield f"{listed(odd)}: indivisible by tensor {layout.tensor}"
    elif topology.world_size > layout.tensor > 1 and layout.sharding == "none":
        yield f"{topology} have copies of what tensor {layout.tensor} ranks share: set sharding: gradients or full"


def _unmixed(recipe: Recipe, topology: Topology) -> Iterator[str]:
    """Yield what experts cannot have: their products are grouped, in bf16 or uncompiled, and whole on each rank."""
    if (experts := recipe.model.experts) is None:
        return
    if recipe.parallelism.tensor > 1:
        yield "engine torch does not split experts: set tensor: 1 and sequence: false"
    if recipe.model.biases == "all":
        yield "experts of engine torch have no biases: set model.biases: none or qkv"
    if recipe.precision == "fp8":
        yield "engine torch multiplies experts in bf16 alone: set precision: bf16"
    if recipe.precision == "fp32" and recipe.compile and topology.gpus_per_node:
        yield "PyTorch compiles products of experts in bf16 alone: set precision: bf16 or compile: false"
    sizes = {"hidden_size": recipe.model.hidden_size, "experts.feed_forward_size": experts.feed_forward_size}
    if odd := [f"model.{name} {size}" for name, size in sizes.items() if size % _ROW]:
        yield f"products of experts need multiples of {_ROW}, unlike {listed(odd)}"


def _indivisible(recipe: Recipe) -> Iterator[str]:
    """Yield the sides of matrices that a GPU can multiply in 16 bits alone, as 16 does not divide them."""
    model, ranks = recipe.model, recipe.parallelism.tensor
    sides = {
        "model.hidden_size": model.hidden_size,
        "model.attention_heads × head size": model.attention_heads * model.head_width // ranks,
        "queries, keys and values": (model.attention_heads + 2 * model.key_value_heads) * model.head_width // ranks,
        "model.feed_forward_size": model.feed_forward_width // ranks,
        "micro_batch_size × sequence_length": recipe.micro_batch_size * recipe.sequence_length,
    }
    if odd := [f"{name} {side}" for name, side in sides.items() if side % _EIGHT_BIT_TILE]:
        yield f"precision fp8 needs multiples of {_EIGHT_BIT_TILE}, unlike {listed(odd)}"


ENGINE = TorchEngine()
