"""Ranks and GPUs of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.topology import Topology


@given(st.integers(1, 4096), st.integers(0, 16), st.integers(1, 128))
def test_there_is_a_rank_per_gpu_or_the_cpu_ranks_asked_for(nodes: int, gpus: int, cpu_ranks: int) -> None:
    topology = Topology(nodes=nodes, gpus_per_node=gpus, cpu_ranks_per_node=cpu_ranks)
    assert topology.ranks_per_node == (gpus or cpu_ranks)
    assert topology.world_size == nodes * topology.ranks_per_node
    assert topology.gpus == nodes * gpus
    assert topology.device == ("cuda" if gpus else "cpu")


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpu_ranks", "text"),
    [
        (1, 8, 1, "1 node × 8 GPUs"), (128, 1, 1, "128 nodes × 1 GPU"), (1, 0, 1, "1 node × 1 CPU rank"),
        (2, 0, 4, "2 nodes × 4 CPU ranks"),
    ],
)  # fmt: skip
def test_it_reads_as_a_phrase(nodes: int, gpus: int, cpu_ranks: int, text: str) -> None:
    assert str(Topology(nodes=nodes, gpus_per_node=gpus, cpu_ranks_per_node=cpu_ranks)) == text
