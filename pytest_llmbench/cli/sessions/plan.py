"""`llmbench plan`: what pytest would run."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pytest_llmbench.cli.output import AsJson, print_json

# Words that this program does not know are pytest's.
FOR_PYTEST = {"allow_extra_args": True, "ignore_unknown_options": True}
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[PYTEST ARGUMENTS]...", help="Tests and options of pytest.")
]


def plan_session(words: Words = None, *, as_json: AsJson = False) -> None:
    """Show what pytest would run with these arguments: scripts and node-hours. Nothing is submitted (pytest --plan)."""
    if not as_json:
        run_pytest(["--llmbench-plan", *(words or ())])
    from pytest_llmbench.cli.sessions.planned import planned  # noqa: PLC0415 - pytest, in this process

    code, data = planned(words or ())
    print_json(data)
    raise typer.Exit(code)


def run_pytest(words: Sequence[str]) -> None:
    """Become pytest."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *words])  # noqa: S606 - no shell, as intended
