"""`llmbench report`: the HTML report of a session, from its folder."""

from pathlib import Path
from typing import Annotated

import typer

from pytest_llmbench.cli.folders import RUN_DIR
from pytest_llmbench.cli.output import AsJson, print_json

REPORT = "Write the report of a session as one HTML file, from its records alone."

_SESSION = "Folder of the session, or its id in --run-dir; without it, the newest there."
_OUTPUT = "File to write; without it, report.html in the session's folder."
_COMPARE = "Folder or id of an earlier session to compare with."
_RUN_DIR = "Folder of the sessions."


def report_session(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help=_SESSION)] = None,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help=_OUTPUT)] = None,
    compare: Annotated[str | None, typer.Option("--compare", metavar="SESSION", help=_COMPARE)] = None,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help=_RUN_DIR)] = RUN_DIR,
    as_json: AsJson = False,
) -> None:
    """Write the report of a session as one HTML file that needs no network, from its records alone.

    With `as_json`, print the file, its verdicts, and what is missing or damaged.

    Raises:
        ConfigError: there is no such session.
        OSError: the file cannot be written.
    """
    from pytest_llmbench.reporting.html.page import write_page  # noqa: PLC0415
    from pytest_llmbench.reporting.html.rows import KINDS, counts, verdict_rows  # noqa: PLC0415
    from pytest_llmbench.session.folder import find_session, read_folder  # noqa: PLC0415

    folder = find_session(session, run_dir)
    earlier = find_session(compare, run_dir) if compare is not None else None
    path = write_page(folder, output=output, earlier=earlier)
    if not as_json:
        typer.echo(f"report: {path}")
        return
    found = read_folder(folder)
    broken = [f"{about} {name}: {why}" for (about, name), why in found.broken.items()]
    verdicts = {KINDS[kind]: number for kind, number in counts(verdict_rows(found)).items()}
    told = {"report": str(path), "session": found.id, "verdicts": verdicts, "damage": [*broken, *found.damage]}
    print_json(told)
