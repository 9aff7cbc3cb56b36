"""A finished session, read from its folder."""

from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.base import FinishedSession


def read_finished(folder: Path) -> FinishedSession:
    """Read a session's plan and records.

    Raises:
        ConfigError: the folder is not a session's, or a record in it cannot be read.
    """
    try:
        planned = Plan.model_validate_json((folder / layout.PLAN).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{folder} is not a session's folder: {folder / layout.PLAN} cannot be read: {error}"
        ) from error
    runs = [RunRecord.read(path) for path in sorted((folder / layout.FOLDERS["run"]).glob(f"*/{layout.RECORD}"))]
    checks = [HealthRecord.read(path) for path in sorted((folder / layout.FOLDERS["check"]).glob(f"*/{layout.RECORD}"))]
    return FinishedSession(
        id=next((record.session for record in (*runs, *checks)), folder.resolve().name),
        folder=folder,
        planned=planned,
        runs={record.key: record for record in runs},
        checks={record.check: record for record in checks},
    )
