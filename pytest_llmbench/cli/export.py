"""`llmbench export`: the numbers of a session in formats of other programs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_llmbench.cli.folders import RUN_DIR
from pytest_llmbench.cli.output import AsJson, print_json
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from pytest_llmbench.reporting.base import FinishedSession


class ExportFormat(StrEnum):
    """A format of `llmbench export`."""

    OPENMETRICS = "openmetrics"
    OTLP = "otlp"
    TENSORBOARD = "tensorboard"
    CSV = "csv"
    PARQUET = "parquet"


def export(
    form: Annotated[ExportFormat, typer.Argument(metavar="FORMAT", help="openmetrics|otlp|tensorboard|csv|parquet")],
    session: Annotated[Path, typer.Argument(help="Folder of the session, or its id in reports.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File of openmetrics, else folder; without it, SESSION-FORMAT in this folder."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Endpoint of otlp, such as http://collector:4318.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that otlp may take.")] = 10.0,
    *,
    as_json: AsJson = False,
) -> None:
    """Write the numbers of a session for Prometheus, OpenTelemetry, TensorBoard, or as tables."""
    from pytest_llmbench.export.sessions import read_finished  # noqa: PLC0415  # a start costs less
    from pytest_llmbench.session.folder import find_session  # noqa: PLC0415  # likewise

    if (form is ExportFormat.OTLP) != (url is not None):
        raise ConfigError("--url is for otlp, which needs it: llmbench export otlp SESSION --url http://collector:4318")
    if form is ExportFormat.OTLP and output is not None:
        raise ConfigError("--output is not for otlp, which writes no file")
    session = find_session(session, RUN_DIR)
    finished = read_finished(session)
    if url is not None:
        from pytest_llmbench.export.otlp import ExportError, send  # noqa: PLC0415  # likewise

        try:
            sent = send(finished, url, timeout)
        except ExportError as error:
            if as_json:
                print_json({"sent": 0, "error": str(error)})
            else:
                typer.echo(f"NOT SENT: {error}")
            raise typer.Exit(1) from error
        if as_json:
            print_json({"sent": sent})
        else:
            typer.echo(f"{sent} numbers sent to {harmless(url)}")
        return
    target = output or Path(f"{session.resolve().name}-{form}{'.prom' if form is ExportFormat.OPENMETRICS else ''}")
    written = [str(path) for path in _write(form, finished, target)]
    if as_json:
        print_json({"written": written})
    else:
        typer.echo("\n".join(map(harmless, written)))


def _write(form: ExportFormat, finished: "FinishedSession", target: Path) -> list[Path]:
    from pytest_llmbench.export import openmetrics, tables, tensorboard  # noqa: PLC0415  # likewise

    if form is ExportFormat.OPENMETRICS:
        openmetrics.write_metrics(finished, target)
        return [target]
    writers = {
        ExportFormat.TENSORBOARD: tensorboard.write_events,
        ExportFormat.CSV: tables.write_csv,
        ExportFormat.PARQUET: tables.write_parquet,
    }
    return writers[form](finished, target)
