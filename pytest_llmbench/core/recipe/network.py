"""The network of a system between its nodes, as its file states it."""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from pytest_llmbench.core.schema import Strict


class Network(Strict):
    """NICs that carry the collectives. Stated numbers count before those that a node shows of itself."""

    nics_per_node: PositiveInt | None = None
    """Number of NICs of one node for collectives; absent, as counted on the node."""
    rate_gbits: PositiveFloat | None = None
    """Rate of one NIC in each direction, Gb/s; absent, as read on the node."""
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    """Ratio of the rates of all NICs to that of the fabric between the nodes: 1 for full bisection."""
