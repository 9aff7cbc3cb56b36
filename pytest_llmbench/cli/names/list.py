"""`llmbench list`: the names that tests, files and options may use."""

from enum import StrEnum
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_rows


class Listed(StrEnum):
    """A kind of names."""

    RECIPES = "recipes"
    SYSTEMS = "systems"
    CHECKS = "checks"
    ENGINES = "engines"
    STATISTICS = "statistics"
    REFERENCES = "references"


def list_names(
    kind: Annotated[
        Listed, typer.Argument(metavar="KIND", help="recipes|systems|checks|engines|statistics|references")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """List what tests, files and options may name: what is installed, and what the ini file of this folder adds."""
    # With pytest and all engines: other commands, and completion, need not wait for their import.
    from pytest_llmbench.cli.names.rows import COLUMNS, rows_of  # noqa: PLC0415

    rows, left_out = rows_of(kind)
    print_rows(rows, as_json=as_json, columns=COLUMNS[kind])
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)
