"""Memory that engine torch takes: the plan estimates by it, and ranks choose what they recompute."""

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.judging.memory import Footprint, State, micro_batches


def footprint(recipe: Recipe, topology: Topology) -> Footprint | None:
    """Return what a training keeps in the memory of its GPUs; None for a sharding that is refused."""
    # Weights, gradients and both moments are fp32; products take 16-bit copies of the weights.
    copies = max(1, topology.world_size // recipe.parallelism.tensor)
    copy, keeps = 0.0 if recipe.precision == "fp32" else 2.0, micro_batches(recipe, copies) > 1
    sharding = recipe.parallelism.sharding if copies > 1 else "none"
    states = {
        # Over micro batches, gradients and copies stay, and DDP averages in buckets beside them.
        "none": (State(16), State(16 + keeps * (copy + 4 * (copies > 1)))),
        # FSDP keeps gradients whole until the last micro batch.
        "gradients": (State(copy or 4, 16), State((copy or 4) + 4 * keeps, 12 + 4 * (not keeps))),
        "full": (State(0, 16), State(0, 16)),
    }
    if sharding not in states:
        return None
    least, usual = states[sharding]
    # Of a ReLU the output is kept alone, of other activations the input, too.
    inner = 0 if recipe.model.activation in {None, "relu"} else 8
    return Footprint(
        least=least, usual=usual, activation=24 + inner + 2 * bool(recipe.model.dropout), logit=8, most_logits=2**28,
        unit=10 if sharding == "full" else 0, embedding=4,
    )  # fmt: skip
