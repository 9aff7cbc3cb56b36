"""Facts about NCCL's transport, which `readers.nccl` reads from its log lines."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

LinkKind = Literal["P2P", "SHM", "NET", "COLLNET"]


class Fact(NamedTuple):
    """The fact of one line, and the line."""

    value: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLink:
    """The way from one rank to another. Links of the same ranks by the same way are one."""

    kind: LinkKind
    via: str  # in NCCL's words, such as `NET/IB/3/GDRDMA`
    sender: int
    receiver: int
    within: bool | None  # whether both ranks are in one NVLink domain, as a node is; None where the lines leave it open
    network: str | None = None  # NCCL's name of it, such as `IB` or `Socket`
    gdr: bool = False  # whether the NIC reads the GPU's memory
    line: str

    @property
    def way(self) -> str:
        """Its way without the number of a NIC, such as `NET/IB/GDRDMA`."""
        return self.via if self.network is None else f"{self.kind}/{self.network}{'/GDRDMA' if self.gdr else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclComm:
    """A communicator, as one rank printed it."""

    rank: int
    ranks: int
    nodes: int | None  # NVLink domains: a rack of NVL72 is one
    mnnvl: bool | None
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLog:
    """The facts of one host's lines."""

    lines: int = 0  # of NCCL
    unread: int = 0  # of those, lines of a known form that cannot be read
    unread_line: str = ""
    version: str | None = None
    links: tuple[NcclLink, ...] = ()
    comms: tuple[NcclComm, ...] = ()
    nodes: int = 1  # NVLink domains of the largest communicator; without its line, the number of hosts
    # Lines by the name of their fact: those of `_FACTS`, `nics` (the most of all ranks), `nvls` (`yes` or `no`),
    # `nvls_channels`, `coll_channels` and `clique` (the fewest of all ranks).
    facts: Mapping[str, Fact] = field(default_factory=dict)
    # By operation: algorithm and protocol of its largest message, as `NVLS/SIMPLE`.
    algorithms: Mapping[str, Fact] = field(default_factory=dict)
    variables: Mapping[str, Fact] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def seen(self) -> bool:
        """True if the lines show a way that data went."""
        return bool(self.links) or any(fact.value.startswith("NVLS") for fact in self.algorithms.values())

    @property
    def transports(self) -> dict[str, int]:
        """Number of links by their way, the numbers of NICs left out: `{"P2P/CUMEM": 8}`."""
        return dict(Counter(link.way for link in self.links))

    def summary(self) -> dict[str, Any]:
        """The facts as plain data, for a record."""
        return {
            "version": self.version, "lines": self.lines, "unread": self.unread, "transports": self.transports,
            "nodes": self.nodes, "facts": {name: fact.value for name, fact in self.facts.items()},
            "algorithms": {what: fact.value for what, fact in self.algorithms.items()},
            "variables": {name: fact.value for name, fact in self.variables.items()},
            "warnings": list(self.warnings),
        }  # fmt: skip
