"""`llmbench validate`: every fault of recipe and system files."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_json


def validate_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recipe files and system files.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show each fault of recipe and system files, with its line, its key and the legal values; exit with 1 for any."""
    # All engines: other commands, and completion, need not wait for their import.
    from pytest_llmbench.cli.site.reading import in_site  # noqa: PLC0415
    from pytest_llmbench.cluster.vetting import vet  # noqa: PLC0415

    # Engines and checks of a `conftest.py` in this folder count as well.
    found = in_site(lambda _: [fault for path in files for fault in vet(path)])
    if as_json:
        print_json([fault.plain for fault in found])
    else:
        for fault in found:
            typer.echo(str(fault))
        if not found:
            typer.echo(f"{len(files)} of {len(files)} files are valid")
    if found:
        raise typer.Exit(1)
