"""`llmbench resume`: pytest once more, for what a session has left."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.sessions.plan import run_pytest

_HELP = "A session's id or folder, by default the newest that did not end; then options of pytest."


def resume_session(
    words: Annotated[list[str] | None, typer.Argument(metavar="[SESSION] [PYTEST ARGUMENTS]...", help=_HELP)] = None,
    *,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sessions.")] = Path("reports"),
) -> None:
    """Go on with a session whose process died (pytest --resume).

    Without pytest arguments, it takes those that the session was begun with. Start it in the same folder.
    """
    from pytest_llmbench.cli.sessions.begun import words_of  # noqa: PLC0415 - reads the journal, with pydantic

    named = [word for word in (words or ())[:1] if not word.startswith("-")]
    which, begun = words_of(run_dir, *named)
    given = (words or [])[len(named) :]
    run_pytest([*(given or begun), f"--llmbench-resume={which}", f"--llmbench-run-dir={run_dir}"])
