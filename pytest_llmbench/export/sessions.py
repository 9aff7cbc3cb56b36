"""A finished session, read from its folder."""

from pathlib import Path

from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.session.folder import read_plan, read_records


def read_finished(folder: Path) -> FinishedSession:
    """Read a session's plan and records.

    Raises:
        ConfigError: the folder is not a session's, or a record in it cannot be read.
    """
    plan = read_plan(folder)
    runs, checks = read_records(folder, RunRecord), read_records(folder, HealthRecord)
    return FinishedSession(
        id=next((record.session for record in (*runs.values(), *checks.values())), folder.resolve().name),
        folder=folder,
        planned=plan,
        runs=runs,
        checks=checks,
    )
