"""`llmbench export`: the numbers of a session for Prometheus, or as CSV tables."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.folders import RUN_DIR
from pytest_llmbench.cli.output import AsJson, print_json
from pytest_llmbench.core.text import harmless


class ExportFormat(StrEnum):
    """A format of `llmbench export`."""

    OPENMETRICS = "openmetrics"
    CSV = "csv"


def export(
    form: Annotated[ExportFormat, typer.Argument(metavar="FORMAT", help="openmetrics|csv")],
    session: Annotated[Path, typer.Argument(help="Folder of the session, or its id in reports.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File of openmetrics, else folder; without it, SESSION-FORMAT in this folder."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Write the numbers of a session for Prometheus, or as CSV tables."""
    from pytest_llmbench.reporting.base import read_finished  # noqa: PLC0415  # `--help` starts sooner
    from pytest_llmbench.reporting.export import write_csv, write_metrics  # noqa: PLC0415
    from pytest_llmbench.session.folder import find_session  # noqa: PLC0415

    session = find_session(session, RUN_DIR)
    finished = read_finished(session)
    if form is ExportFormat.OPENMETRICS:
        written = [output or Path(f"{session.resolve().name}-openmetrics.prom")]
        write_metrics(finished, written[0])
    else:
        written = write_csv(finished, output or Path(f"{session.resolve().name}-csv"))
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        typer.echo("\n".join(harmless(str(path)) for path in written))
