"""`llmbench compare`: what changed from one session to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_llmbench.cli.history import DEFAULT, Where, existing, print_table
from pytest_llmbench.cli.output import RUN_DIR, AsJson, print_json
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import for_people
from pytest_llmbench.core.record.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_llmbench.history.store.database import History
    from pytest_llmbench.history.store.queries import PastRun
    from pytest_llmbench.history.trend.sessions import ComparedNumber

NOTHING_COMPARED = 10


def compare(
    before: Annotated[
        str, typer.Argument(help="The earlier session: its folder, or its id or name in reports or the history.")
    ],
    after: Annotated[str, typer.Argument(help="The later one.")],
    *,
    history: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Compare two sessions, each number with what is uncertain of both.

    Exit with 1 if a number became worse beyond that, or cannot be judged any more, and with 10 if nothing could be
    compared.
    """
    lines = _lines(before, after, history)
    if as_json:
        print_json([line.plain for line in lines])
    else:
        _print(lines)
    compared = [line for line in lines if line.verdict in {Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE}]
    if any(line.verdict in {Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE} for line in lines):
        raise typer.Exit(1)
    if not compared:
        typer.echo("nothing was compared", err=True)
        raise typer.Exit(NOTHING_COMPARED)


def _lines(before: str, after: str, url: str) -> "list[ComparedNumber]":
    from pytest_llmbench.history.trend.sessions import compare_sessions  # noqa: PLC0415  # SQLAlchemy is heavy

    if before == after:
        raise ConfigError(f"{before}: a session is never slower than itself; name two")
    # A history that is there says how runs differ, also of sessions that are given as folders.
    if "://" in url or Path(url).expanduser().exists():
        with existing(url) as opened:
            old, new = (_runs(each, opened) for each in (before, after))
            return compare_sessions(old, new, _past(opened, old, new))
    old, new = (_runs(each, None) for each in (before, after))
    return compare_sessions(old, new)


def _runs(given: str, history: "History | None") -> "list[PastRun]":
    from pytest_llmbench.history.store.importing import read_session  # noqa: PLC0415
    from pytest_llmbench.history.store.queries import find_session, runs_of  # noqa: PLC0415
    from pytest_llmbench.history.trend.sessions import runs_of_rows  # noqa: PLC0415
    from pytest_llmbench.session.folder import find_session as find_folder  # noqa: PLC0415

    try:
        folder = find_folder(given, RUN_DIR)
    except ConfigError:
        folder = None
    if folder is not None:
        rows, refused = read_session(folder)
        if refused:
            raise ConfigError("\n".join(refused))
        if not rows:
            raise ConfigError(f"{given}: no records in it; give the folder of one session")
        return runs_of_rows(rows)
    if history is None:
        raise ConfigError(
            f"{given}: neither a folder nor a session in {RUN_DIR}, and the folder has no history to look it up in: "
            "`llmbench history import` makes one, or give --history"
        )
    with history.reading() as connection:
        session = find_session(connection, given)
    return runs_of(history, [session])


def _past(history: "History", old: "Sequence[PastRun]", new: "Sequence[PastRun]") -> "Mapping[str, list[PastRun]]":
    """The runs before the later session, by recipe: they say how runs differ."""
    from pytest_llmbench.history.store.queries import runs_before  # noqa: PLC0415

    recipes = {run.series.recipe for run in old} & {run.series.recipe for run in new}
    sessions = {run.session for run in new}
    until = min((run.time for run in new), default=0.0)
    return {recipe: runs_before(history, recipe, until, leave_out=sessions) for recipe in recipes}


def _print(lines: "Sequence[ComparedNumber]") -> None:
    rows = []
    for line in lines:
        numbers = change = between = ""
        if (told := line.change) is not None:
            numbers = f"{for_people(told.before)} -> {for_people(told.after)} {told.unit}"
            change = f"{100 * told.share:+.2f} %"
            if told.low is not None and told.high is not None:
                between = f"{100 * told.low:+.2f} to {100 * told.high:+.2f} %"
        rows.append((line.recipe, line.metric, numbers, change, between, line.verdict, line.reason))
    print_table(("recipe", "metric", "before -> after", "change", "between", "verdict", "reason"), rows)
