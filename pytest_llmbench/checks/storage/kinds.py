"""Kinds of findings of storage checks."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

StorageKind = Literal["data_differs", "data_missing", "wrong_bytes"]

finding: FindingMaker[StorageKind | SharedKind] = make_finding
