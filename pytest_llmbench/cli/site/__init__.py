"""`llmbench init` and `llmbench doctor`: a new site, and its login node."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_facts, print_rows


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
    """Make the folder of a site: ini file, system file from Slurm and nvidia-smi, first recipe and tests, CI.

    A file that is there already is never overwritten.
    """
    from pytest_llmbench.cli.site.files import write_site  # noqa: PLC0415  # with all engines

    print_rows(write_site(folder, ci, engine), as_json=as_json, columns=("file", "fate", "note"))
    if not as_json:
        typer.echo(f"next: cd {folder}, then llmbench doctor, then pytest --scale smoke test_training.py")


def examine_machine(*, as_json: AsJson = False) -> None:
    """Examine this login node for the tests of this folder, and show the command that gets each missing part.

    It exits with 1 where a needed part is missing or wrong.
    """
    from pytest_llmbench.cli.site.examination import examine  # noqa: PLC0415  # with pytest and all engines

    parts = examine()
    print_facts([asdict(part) for part in parts], [line for part in parts for line in part.lines], as_json=as_json)
    if any(part.needed and part.state != "ok" for part in parts):
        raise typer.Exit(1)
