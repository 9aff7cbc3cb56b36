"""How many ranks a run has and where they sit."""

from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.core.quantity import counted

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The shape of one run on the nodes.

    Attributes:
        nodes: number of nodes.
        gpus_per_node: GPUs used on each node; 0 trains on the CPU.
        cpu_ranks_per_node: ranks per node when there are no GPUs.
    """

    nodes: int
    gpus_per_node: int
    cpu_ranks_per_node: int = 1

    @property
    def device(self) -> Device:
        """Device of the ranks."""
        return "cuda" if self.gpus_per_node else "cpu"

    @property
    def ranks_per_node(self) -> int:
        """One rank per GPU; without GPUs, `cpu_ranks_per_node`."""
        return self.gpus_per_node or self.cpu_ranks_per_node

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        what = counted(self.ranks_per_node, "GPU" if self.gpus_per_node else "CPU rank")
        return f"{counted(self.nodes, 'node')} × {what}"
