"""`llmbench reproduce`: the command that makes a run or check of an earlier session again."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_json
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout


def reproduce(
    run: Annotated[Path, typer.Argument(help="Folder of a run or check, or its record.json.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Print the pytest command that makes a run or check again, by the tests that waited for it.

    A secret of the command line is `***` in its record: put it back yourself. Environment variables and the files that
    the command names are those of today.
    """
    record = _read(run)
    if record.made_by is None:
        raise ConfigError(f"{record.path}: its session recorded no command line")
    told = record.made_by
    if as_json:
        keys = {"reproduce", "directory", "command", "llmbench_version", "user", "host"}
        print_json({"record": record.within_session, **told.model_dump(mode="json", include=keys)})
    else:
        typer.echo(harmless(told.reproduce))


def _read(run: Path) -> Record:
    path = run / layout.RECORD if run.is_dir() else run
    if not path.is_file():
        raise ConfigError(f"there is no {path}: give the folder of a run or check, such as reports/latest/runs/NAME")
    kind = HealthRecord if path.absolute().parent.parent.name == layout.FOLDERS["check"] else RunRecord
    return kind.read(path)
