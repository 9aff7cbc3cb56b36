"""Storage: does the shared file system carry all nodes at once, and do all of them see the data they need?"""

from __future__ import annotations

from pytest_llmbench.checks._storage_load import Storage
from pytest_llmbench.checks._storage_staging import DataStaging
from pytest_llmbench.checks.base import Check

CHECKS: tuple[Check, ...] = (DataStaging(), Storage())
