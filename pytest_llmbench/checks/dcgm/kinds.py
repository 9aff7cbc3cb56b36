"""Kinds of findings of the DCGM check."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, make_finding

DcgmKind = Literal["dcgm_configuration", "dcgm_failed", "dcgm_isolate", "dcgm_recorded"]

finding: FindingMaker[DcgmKind] = make_finding
