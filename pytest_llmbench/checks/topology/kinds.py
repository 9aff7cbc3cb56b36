"""Kinds of findings of the topology check."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

TopologyKind = Literal["topology_file"]

finding: FindingMaker[TopologyKind | SharedKind] = make_finding
