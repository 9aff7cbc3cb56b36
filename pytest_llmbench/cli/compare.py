"""`llmbench compare`: the numbers that changed from one session to another."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_llmbench.cli.history import DEFAULT, Where, open_existing
from pytest_llmbench.cli.output import RUN_DIR, AsJson, AsRecorded, law_of_today, print_json, print_table
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.history.compare import Compared
    from pytest_llmbench.history.database import History
    from pytest_llmbench.history.queries import PastRun
    from pytest_llmbench.session.law import Law

NOTHING_COMPARED = 10


def compare(
    before: Annotated[
        str, typer.Argument(help="The earlier session: its folder, or its id or name in reports or the history.")
    ],
    after: Annotated[str, typer.Argument(help="The later one.")],
    *,
    history: Where = DEFAULT,
    as_recorded: AsRecorded = False,
    as_json: AsJson = False,
) -> None:
    """Compare two sessions, each number with what is uncertain of both.

    Exit with 1 if a number became worse beyond that, or cannot be judged any more, and with 10 if nothing could be
    compared.
    """
    from pytest_llmbench.history.compare import change_texts  # noqa: PLC0415  # engines: `--help` starts sooner

    notes: list[str] = []
    lines = _lines(before, after, history, partial(_runs, law_of_today(as_recorded=as_recorded), notes))
    for note in dict.fromkeys(notes):
        typer.echo(harmless(note), err=True)
    if as_json:
        plain = [{} if line.change is None else asdict(line.change) for line in lines]
        for facts, line in zip(plain, lines, strict=True):
            facts |= {"recipe": line.name, "metric": line.metric, "verdict": str(line.verdict), "reason": line.reason}
            facts |= {"as_recorded": as_recorded}
        print_json(plain)
    else:
        rows = [(line.name, line.metric, *change_texts(line.change), line.verdict, line.reason) for line in lines]
        print_table(("recipe", "metric", "before", "after", "change", "between", "verdict", "reason"), rows)
    if any(line.verdict in {Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE} for line in lines):
        raise typer.Exit(1)
    if not any(line.verdict == Verdict.PASS for line in lines):
        typer.echo("nothing was compared", err=True)
        raise typer.Exit(NOTHING_COMPARED)


def _lines(
    before: str, after: str, url: str, runs: "Callable[[str, History | None], list[PastRun]]"
) -> "list[Compared]":
    from pytest_llmbench.history.compare import compare_sessions  # noqa: PLC0415  # engines: `--help` starts sooner
    from pytest_llmbench.history.queries import runs_before  # noqa: PLC0415

    if before == after:
        raise ConfigError(f"{before}: a session is never slower than itself; name two")
    # A history shows the difference between runs, also of sessions that are given as folders.
    if "://" not in url and not Path(url).expanduser().exists():
        return compare_sessions(runs(before, None), runs(after, None))
    with open_existing(url) as history:
        old, new = runs(before, history), runs(after, history)
        until = min((run.time for run in new if run.time is not None), default=0.0)
        recipes = {run.series.recipe for run in old} & {run.series.recipe for run in new}
        sessions = {run.session for run in new}
        past = {recipe: runs_before(history, recipe, until, leave_out=sessions) for recipe in recipes}
        return compare_sessions(old, new, past)


def _runs(law: "Law", notes: list[str], given: str, history: "History | None") -> "list[PastRun]":
    from pytest_llmbench.history.compare import run_of_record  # noqa: PLC0415
    from pytest_llmbench.history.importing import read_session  # noqa: PLC0415
    from pytest_llmbench.history.queries import find_session, runs_of  # noqa: PLC0415
    from pytest_llmbench.session.folder import find_session as find_folder  # noqa: PLC0415

    try:
        folder = find_folder(given, RUN_DIR)
    except ConfigError:
        folder = None
    if folder is not None:
        records, refused = read_session(folder, replace(law, as_recorded=True))
        if refused:
            raise ConfigError("\n".join(refused))
        if not records:
            raise ConfigError(f"{given}: no records in it; give the folder of one session")
        made = [filed.record for filed in records if isinstance(filed.record, RunRecord)]
        notes += law.notes(made)
        return [run_of_record(record, law.wrong_work(record.recipe, record.topology)) for record in made]
    if history is None:
        raise ConfigError(
            f"{given}: neither a folder nor a session in {RUN_DIR}, and the folder has no history to look it up in: "
            "`llmbench history import` makes one, or give --history"
        )
    with history.reading() as connection:
        session = find_session(connection, given)
    return runs_of(history, session)
