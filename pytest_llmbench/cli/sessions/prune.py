"""`llmbench prune`: old session folders go."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_rows
from pytest_llmbench.core.errors import ConfigError


def prune_sessions(
    *,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sessions.")] = Path("reports"),
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0, help="Only sessions older than this.")
    ] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the newest N sessions.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it, nothing is deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete old session folders with their logs and records: by default it only shows which.

    A session that runs, or has jobs or processes left, is kept. With --older-than and --keep, both must allow it.
    """
    from pytest_llmbench.cli.sessions.old import choose, delete  # noqa: PLC0415 - reads journals, with pydantic

    if older_than is None and keep is None:
        raise ConfigError("give --older-than DAYS, --keep N, or both")
    chosen = choose(run_dir, older_than, keep)
    if yes:
        chosen = [delete(each) if each.fate == "delete" else each for each in chosen]
    print_rows([each.plain for each in chosen], as_json=as_json)
    freed = sum(each.size for each in chosen if each.fate in {"delete", "deleted"})
    if not as_json:
        count = sum(each.fate in {"delete", "deleted"} for each in chosen)
        typer.echo(f"{count} of {len(chosen)} sessions, {freed / 1e6:,.1f} MB{'' if yes else ': --yes deletes them'}")
