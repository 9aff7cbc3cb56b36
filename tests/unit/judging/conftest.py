"""A small recipe and good runs of it."""

from typing import Any

from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.judging.sanity import Evidence
from tests.conftest import known
from tests.support.recipes import small_recipe

GPU = "A100-SXM4-80GB"


def small(**changes: Any) -> Recipe:
    """Build a recipe of 12 steps of 8 sequences of 32 tokens, with some of its values replaced."""
    return small_recipe(changes)


@st.composite
def step_lists(draw: st.DrawFn, recipe: Recipe, ranks: int = 1) -> tuple[Step, ...]:
    """Every step of a run that learns, in times and losses that could be."""
    first, drop = draw(st.floats(1, 12)), draw(st.floats(0, 0.5))
    seconds = st.floats(1e-3, 1e3)
    memory = draw(st.none() | st.integers(1, 2**40))
    return tuple(
        Step(
            step=number, seconds=draw(seconds), tokens=recipe.tokens_per_step, samples=recipe.global_batch_size,
            loss=first - drop * (number - 1) / recipe.steps, grad_norm=draw(st.floats(0, 1e6)),
            peak_memory_bytes=memory, ranks=ranks,
        )
        for number in range(1, recipe.steps + 1)
    )  # fmt: skip


@st.composite
def good_runs(draw: st.DrawFn) -> Evidence:
    """A whole run on some nodes with some GPUs, or CPUs, as the recipe says."""
    topology = Topology(
        nodes=draw(st.integers(1, 3)), gpus_per_node=draw(st.integers(0, 2)), cpu_ranks_per_node=draw(st.integers(1, 2))
    )
    warm_up = draw(st.integers(1, 3))
    recipe = small(steps=warm_up + draw(st.integers(1, 6)), warm_up={"steps": warm_up})
    steps = draw(step_lists(recipe, topology.world_size))
    ranks = tuple(
        RankInfo(
            rank=rank, host=f"n{rank // topology.ranks_per_node}", pid=100 + rank,
            local_rank=rank % topology.ranks_per_node, device=f"NVIDIA {GPU}" if topology.gpus else "cpu",
            versions={"torch": "2.13.0"}, matmul_flops_per_s=1e12, ended=True,
        )
        for rank in range(topology.world_size)
    )  # fmt: skip
    return Evidence(
        recipe=recipe, topology=topology, series=StepSeries(ranks=ranks, steps=steps),
        hosts=tuple(f"n{node}" for node in range(topology.nodes)),
        wall_s=sum(known(step.seconds) for step in steps) + draw(st.floats(0, 100)),
        gpu=draw(st.sampled_from([None, GPU])),
    )  # fmt: skip
