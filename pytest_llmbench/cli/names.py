"""The commands of a site: `llmbench list`, `validate`, `init` and `doctor`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from pytest_llmbench.cli.output import AsJson, print_facts, print_json, print_rows, print_table
from pytest_llmbench.core.errors import ConfigError, unknown

LISTED = ("recipes", "systems", "checks", "engines", "statistics", "references", "schemas")
Kind = Annotated[
    str, typer.Argument(metavar="KIND", help=f"One of {', '.join(LISTED)}.", autocompletion=lambda: list(LISTED))
]


def list_names(kind: Kind, *, as_json: AsJson = False) -> None:
    """List the names that tests, files and options may use: installed ones, and those of this folder's ini file."""
    from pytest_llmbench.cli.rows import KINDS, rows_of  # noqa: PLC0415  # with pytest and all engines

    if kind not in LISTED:
        raise ConfigError(unknown("kind of names", kind, LISTED))
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
    from pytest_llmbench.cluster.vetting import vet  # noqa: PLC0415

    # Engines and checks of a `conftest.py` in this folder count as well.
    faults = call_in_site(lambda _: [fault for path in files for fault in vet(path)])
    lines = [str(fault) for fault in faults] or [f"{len(files)} of {len(files)} files are valid"]
    print_facts([fault.plain for fault in faults], lines, as_json=as_json)
    if faults:
        raise typer.Exit(1)


def make_site(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder; made if it is not there.")] = Path(),
    *,
    ci: Annotated[Literal["github", "gitlab", "none"], typer.Option(help="CI system to write a file for.")] = "github",
    engine: Annotated[str, typer.Option(metavar="NAME", help="Engine of the first recipe.")] = "torch",
    as_json: AsJson = False,
) -> None:
    """Make the folder of a site: ini file, system file from Slurm and nvidia-smi, first recipe and tests, CI.

    A file that is there already is never overwritten.
    """
    from pytest_llmbench.cli.site.files import write_site  # noqa: PLC0415  # with all engines

    print_rows(write_site(folder, ci, engine), as_json=as_json, columns=("file", "fate", "note"))
    if not as_json:
        enter = "" if folder == Path() else f"cd {folder} && "
        typer.echo(f"next: {enter}llmbench doctor && pytest --scale smoke test_training.py")


def examine_machine(*, as_json: AsJson = False) -> None:
    """Examine this login node for the tests of this folder, and show a command that installs each missing part.

    It exits with 1 where a needed part is missing or wrong.
    """
    from pytest_llmbench.cli.site.examination import examine, table_of  # noqa: PLC0415  # with pytest and all engines

    parts = examine()
    if as_json:
        print_json([asdict(part) for part in parts])
    else:
        print_table(("state", "part", "found"), table_of(parts))
    if any(part.needed and part.state != "ok" for part in parts):
        raise typer.Exit(1)
