"""How many ranks a run has and where they sit, and where nodes stand in the cluster."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_llmbench.core.quantity import counted

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The shape of one run on the nodes."""

    nodes: int  # number of nodes
    gpus_per_node: int  # GPUs used on each node; 0 trains on the CPU
    cpu_ranks_per_node: int = 1  # ranks per node when there are no GPUs

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Nodes behind one switch, or in one rack."""

    level: str  # such as `rack`
    name: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.level} {self.name}"


@dataclass(frozen=True, slots=True)
class Places:
    """The group of each node by level, such as `leaf` and `rack`; inner levels come first."""

    levels: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, hosts: Iterable[str]) -> "Places":
        """The same of some nodes, without levels that have them all together, or each in a group of its own."""
        known = {*hosts}
        levels = {
            level: {host: name for host, name in groups.items() if host in known}
            for level, groups in self.levels.items()
        }
        return Places(
            {level: groups for level, groups in levels.items() if 1 < len({*groups.values()}) < max(2, len(groups))}
        )

    def boundary(self, one: str, two: str) -> str:
        """The outermost level at which two nodes are apart; empty for nodes of one place."""
        return next(
            (level for level in reversed(self.levels) if len(self._names(level, one, two)) == 2), "",
        )  # fmt: skip

    def between(self, level: str, one: str, two: str) -> tuple[str, ...]:
        """The names of the two places of a level at which two nodes are apart; empty if they are together."""
        names = self._names(level, one, two)
        return tuple(sorted(names)) if len(names) == 2 else ()

    def __iter__(self) -> Iterator[Segment]:
        """All places, of inner levels first."""
        for level, groups in self.levels.items():
            hosts: dict[str, list[str]] = {}
            for host, name in groups.items():
                hosts.setdefault(name, []).append(host)
            yield from (Segment(level=level, name=name, hosts=tuple(own)) for name, own in hosts.items())

    def order(self, hosts: Sequence[str]) -> list[str]:
        """Nodes of one place next to each other, and those of neighbouring places."""
        return sorted(hosts, key=lambda host: [self.levels[level].get(host, "") for level in reversed(self.levels)])

    def name(self, hosts: Iterable[str]) -> str | None:
        """The place that consists of these nodes; None without one."""
        wanted = {*hosts}
        return next((str(place) for place in self if {*place.hosts} == wanted), None)

    def _names(self, level: str, one: str, two: str) -> set[str]:
        groups = self.levels[level]
        return {groups[host] for host in (one, two) if host in groups} if one in groups and two in groups else set()
