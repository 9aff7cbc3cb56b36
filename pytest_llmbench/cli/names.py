"""`llmbench list` and `llmbench validate`: names and files of this folder and of the package."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_facts, print_rows


class Listed(StrEnum):
    """A kind of names."""

    RECIPES = "recipes"
    SYSTEMS = "systems"
    CHECKS = "checks"
    ENGINES = "engines"
    STATISTICS = "statistics"
    REFERENCES = "references"
    SCHEMAS = "schemas"


Kind = Annotated[Listed, typer.Argument(metavar="KIND", help="|".join(Listed))]


def list_names(kind: Kind, *, as_json: AsJson = False) -> None:
    """List what tests, files and options may name: what is installed, and what the ini file of this folder adds."""
    from pytest_llmbench.cli.rows import KINDS, rows_of  # noqa: PLC0415  # with pytest and all engines

    rows, left_out = rows_of(kind)
    print_rows(rows, as_json=as_json, columns=KINDS[kind][1])
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)


def validate_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recipe files and system files.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show each fault of recipe and system files, with its line, its key and the legal values; exit with 1 for any."""
    from pytest_llmbench.cli.site.reading import call_in_site  # noqa: PLC0415  # with pytest and all engines
    from pytest_llmbench.cluster.authoring.vetting import vet  # noqa: PLC0415

    # Engines and checks of a `conftest.py` in this folder count as well.
    faults = call_in_site(lambda _: [fault for path in files for fault in vet(path)])
    lines = [str(fault) for fault in faults] or [f"{len(files)} of {len(files)} files are valid"]
    print_facts([fault.plain for fault in faults], lines, as_json=as_json)
    if faults:
        raise typer.Exit(1)
