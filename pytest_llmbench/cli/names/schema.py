"""`llmbench schema`: the JSON Schemas of files and records."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_json
from pytest_llmbench.core.files import write_text


class SchemaKind(StrEnum):
    """A kind of file that has a schema."""

    RECIPE = "recipe"
    SYSTEM = "system"
    RUN_RECORD = "run-record"
    HEALTH_RECORD = "health-record"


def print_schema(
    kind: Annotated[SchemaKind, typer.Argument(metavar="KIND", help="recipe|system|run-record|health-record")],
    *,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of recipe files, system files, run records or health records."""
    from pytest_llmbench.core.paths import shipped  # noqa: PLC0415 - quick as it is

    text = (shipped("schemas") / f"{kind}.json").read_text(encoding="utf-8")
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        if as_json:  # the schema itself is JSON anyway
            print_json({"written": str(output)})
