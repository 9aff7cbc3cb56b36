"""Kinds of findings of the checks of collectives: they have none of their own."""

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

finding: FindingMaker[SharedKind] = make_finding
