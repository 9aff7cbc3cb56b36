"""`llmbench init`: the folder of a site."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_rows


class CiSystem(StrEnum):
    """A CI system that runs the tests."""

    GITHUB = "github"
    GITLAB = "gitlab"
    NONE = "none"


def make_site(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder; made if it is not there.")] = Path(),
    *,
    ci: Annotated[CiSystem, typer.Option(help="CI system to write a file for.")] = CiSystem.GITHUB,
    engine: Annotated[str, typer.Option(metavar="NAME", help="Engine of the first recipe.")] = "torch",
    as_json: AsJson = False,
) -> None:
    """Make the folder of a site: ini file, system file from what Slurm and nvidia-smi tell, first recipe and tests, CI.

    A file that is there already is never overwritten.
    """
    from pytest_llmbench.cli.site.files import write_site  # noqa: PLC0415 - all engines

    rows = write_site(folder, ci, engine)
    print_rows(rows, as_json=as_json, columns=("file", "fate", "note"))
    if not as_json:
        typer.echo(f"next: cd {folder}, then llmbench doctor, then pytest --scale smoke test_training.py")
