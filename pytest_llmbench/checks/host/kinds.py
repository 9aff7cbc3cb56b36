"""Kinds of findings of host checks."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

HostKind = Literal[
    "clock_not_kept", "clock_skew", "cold_cache", "container_runtime", "cuda", "differs", "disk_full", "limit",
    "missing_device", "missing_file", "no_inodes", "not_writable", "other_folder", "shared_cache", "tuning",
]  # fmt: skip

finding: FindingMaker[HostKind | SharedKind] = make_finding
