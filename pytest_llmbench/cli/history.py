"""`llmbench history`, a database of many sessions with questions to it, and `llmbench compare`, which may use it."""

import csv
import datetime as dt
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_llmbench.cli.output import RUN_DIR, AsJson, AsRecorded, law_of_today, print_facts, print_json, print_table
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted, for_people, listed, utc
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from pytest_llmbench.history.database import History
    from pytest_llmbench.history.queries import PastRun, SeriesPoint
    from pytest_llmbench.session.law import Law

app = typer.Typer(help="Keep the records of many sessions in a database, and query it.", no_args_is_help=True)

_HELP = "The history: a file (SQLite), or postgresql://USER@HOST/DATABASE"
#: variable LLMBENCH_HISTORY: default of `--history`
Where = Annotated[str, typer.Option("--history", envvar="LLMBENCH_HISTORY", metavar="URL", help=_HELP)]
DEFAULT = "llmbench-history.db"
NOTHING_COMPARED = 10
# The facts of the first run after a change of its series.
_OF_CHANGE = ("series", "session", "run", "time", "git_commit", "system", "nodes", "hardware", "unit")


def open_existing(url: str) -> "History":
    """Open an existing history, so that a misspelt file is an error instead of a new database.

    Raises ConfigError if the file is missing, or if `open_history` refuses it.
    """
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415  # engines: `--help` starts sooner

    if re.match(r"[a-z]+:", url) is None and not Path(url).expanduser().exists():
        raise ConfigError(f"there is no history {url}: `llmbench history import` makes one, or give --history")
    return open_history(url)


@app.command("import")
def import_(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of sessions, or folders that have them.")
    ],
    *,
    history: Where = DEFAULT,
    tag: Annotated[list[str] | None, typer.Option(help="A name for these sessions.")] = None,
    commit: Annotated[str | None, typer.Option(help="The git commit that they tested.")] = None,
    as_recorded: AsRecorded = False,
    as_json: AsJson = False,
) -> None:
    """Import the records of sessions, each once.

    Exit with 1 if one is damaged, was changed, ran another recipe than that of this folder, or if none is there.
    """
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415
    from pytest_llmbench.history.importing import About, import_sessions  # noqa: PLC0415

    about = About(git_commit=commit, tags=tuple(tag or ()))
    imported = import_sessions(open_history(history), paths, about, law_of_today(as_recorded=as_recorded))
    empty = [f"no record of a session in {path}" for path in imported.empty]
    facts = {name: getattr(imported, name) for name in type(imported).__slots__}
    print_facts(facts, [*empty, *imported.refused, *imported.doubts, str(imported)], as_json=as_json)
    if imported.refused or not imported.sessions:
        raise typer.Exit(1)


@app.command(short_help="List sessions, or show the records of one.")
def show(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Id of a session, or its beginning; without it, all.")
    ] = None,
    *,
    tag: Annotated[str | None, typer.Option(help="A name for this session: --llmbench-compare-to tag:NAME.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Only the newest N sessions.")] = 50,
    history: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first, or show the records of one; with --tag, name it first, such as a baseline."""
    from pytest_llmbench.history.importing import add_tag  # noqa: PLC0415
    from pytest_llmbench.history.queries import find_session, list_sessions, show_session  # noqa: PLC0415

    opened = open_existing(history)
    if session is None:
        if tag is not None:
            raise ConfigError("--tag names one session: llmbench history show SESSION --tag NAME")
        sessions = list_sessions(opened, last)
        if as_json:
            print_json(sessions)
        else:
            names = ("session", "began", "system", "runs", "checks", "verdicts", "tags", "commit")
            print_table(names, map(_row_of_session, sessions))
        return
    if tag is not None:
        with opened.writing() as connection:
            add_tag(connection, find_session(connection, session), tag)
    facts = show_session(opened, session)
    print_facts(facts, _lines_of_session(facts), as_json=as_json)


def _lines_of_session(facts: Mapping[str, Any]) -> Iterator[str]:
    tags = f", tags {', '.join(facts['tags'])}" if facts["tags"] else ""
    yield f"session {facts['id']}, {_time(facts['began'])}, system {facts['system']}, cluster {facts['cluster']}{tags}"
    for record in facts["records"]:
        metrics = record["metrics"].items()
        numbers = ", ".join(f"{name} {for_people(metric['value'])} {metric['unit']}" for name, metric in metrics)
        yield f"{record['about']} {record['name']}: {record['problem'] or numbers or 'no numbers'}"
        if not record["counts"]:
            reason = f"simulated {record['simulated']}" if record["simulated"] else "another record has the same steps"
            yield f"  is left out of series: {reason}"
        for verdict in record["verdicts"]:
            threshold = f" {verdict['threshold']}" if verdict["threshold"] else ""
            yield f"  {verdict['verdict']} {verdict['test']}{threshold}"


@app.command(short_help="Print a number over time, or when it changed.")
def series(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of the history.")],
    metric: Annotated[str, typer.Argument(metavar="STATISTIC", help="A statistic of it.")],
    *,
    changes: Annotated[
        float | None,
        typer.Option(metavar="P", min=1e-12, max=0.5, help="Print the runs at which it changed, up to this p."),
    ] = None,
    last: Annotated[int | None, typer.Option(min=2, help="Only the newest N runs.")] = None,
    number: Annotated[int | None, typer.Option("--series", help="Only this series: one machine and setup.")] = None,
    history: Where = DEFAULT,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Print a number of a recipe over time, or its changes, for each machine and setup.

    Apache Otava reads the CSV of one series.
    """
    from pytest_llmbench.history.queries import SeriesPoint, read_series  # noqa: PLC0415

    points = read_series(open_existing(history), recipe, metric, last=last, series=number)
    if changes is not None:
        _print_changes(f"{recipe} {metric}", points, changes, as_json=as_json)
    elif as_json:
        print_json([point._asdict() for point in points])
    elif as_csv:
        writer = csv.DictWriter(text := io.StringIO(), SeriesPoint._fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {**point._asdict(), "time": dt.datetime.fromtimestamp(point.time, dt.UTC).isoformat()} for point in points
        )
        typer.echo(text.getvalue(), nl=False)
    else:
        rows = [
            (
                _time(point.time), point.session, point.run, f"{for_people(point.value)} {point.unit}",
                " - ".join(for_people(end) for end in (point.low, point.high) if end is not None),
                f"{point.nodes} × {point.hardware}", (point.git_commit or "")[:10],
            )
            for point in points
        ]  # fmt: skip
        print_table(("time", "session", "run", metric, "between", "nodes", "commit"), rows)


def _row_of_session(session: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        session["id"], _time(session["began"]), session["system"], session["runs"], session["checks"],
        " ".join(f"{count} {word}" for word, count in sorted(session["verdicts"].items())),
        " ".join(session["tags"]), (session["git_commit"] or "")[:10],
    )  # fmt: skip


def _print_changes(title: str, points: "Sequence[SeriesPoint]", p_value: float, *, as_json: bool) -> None:
    from pytest_llmbench.history.change_points import change_points  # noqa: PLC0415

    by_series: dict[int, list[SeriesPoint]] = {}
    for point in points:
        by_series.setdefault(point.series, []).append(point)
    changes: list[dict[str, Any]] = []
    for own in by_series.values():
        for change in change_points([point.value for point in own], p_value=p_value):
            at = own[change.index]
            changes.append(
                {
                    **{name: getattr(at, name) for name in _OF_CHANGE}, "position": change.index, "p": change.p,
                    "before": change.before, "after": change.after,
                    "change": None if change.change is None else 100 * change.change,
                    "worse": None if at.better is None else (change.after < change.before) == (at.better == "higher"),
                }
            )  # fmt: skip
    if as_json:
        print_json({"runs": len(points), "series": len(by_series), "changes": changes})
        return
    runs, found = counted(len(points), "run"), counted(len(changes), "change")
    typer.echo(harmless(f"{runs} of {title} in {len(by_series)} series, {found}"))
    words = {True: "worse", False: "better", None: ""}
    rows = [
        (
            _time(change["time"]), change["session"], change["position"],
            f"{for_people(change['before'])} -> {for_people(change['after'])} {change['unit']}",
            "" if change["change"] is None else f"{change['change']:+.2f} %", words[change["worse"]],
            f"{change['p']:.1g}",
        )
        for change in changes
    ]  # fmt: skip
    if rows:
        print_table(("since", "session", "position", "before -> after", "change", "verdict", "p"), rows)


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar="BEFORE", help="The earlier session: its folder, or its id or name in reports or the history."
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The later one.")],
    *,
    history: Where = DEFAULT,
    as_recorded: AsRecorded = False,
    as_json: AsJson = False,
) -> None:
    """Compare two sessions, each number with the uncertainty of both.

    Exit with 1 if a number became worse beyond that, or cannot be judged any more, and with 10 if nothing could be
    compared, or nothing of one recipe.
    """
    from pytest_llmbench.core.record.records import Verdict  # noqa: PLC0415  # `--help` starts sooner
    from pytest_llmbench.history.compare import NOT_JUDGED, change_texts, compare_sessions  # noqa: PLC0415
    from pytest_llmbench.history.queries import runs_before  # noqa: PLC0415

    if before == after:
        raise ConfigError(f"{before}: this is one session; name two")
    law = law_of_today(as_recorded=as_recorded)
    # A history shows the difference between runs, also of sessions that are given as folders.
    opened = open_existing(history) if "://" in history or Path(history).expanduser().exists() else None
    (old, notes), (new, more) = (_compared_runs(given, opened, law) for given in (before, after))
    lines = compare_sessions(old, new, runs_before(opened, new) if opened is not None else {})
    for note in dict.fromkeys([*notes, *more]):
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
    left = {line.name for line in lines if line.verdict == NOT_JUDGED}
    left -= {line.name for line in lines if line.verdict == Verdict.PASS}
    if left or not any(line.verdict == Verdict.PASS for line in lines):
        typer.echo(f"nothing was compared{f' of {listed(sorted(left))}' if left else ''}", err=True)
        raise typer.Exit(NOTHING_COMPARED)


def _compared_runs(given: str, history: "History | None", law: "Law") -> "tuple[list[PastRun], list[str]]":
    """The runs of a session by its folder, else by the history, and notes on how their recipes were compared."""
    from pytest_llmbench.history.compare import run_of_record  # noqa: PLC0415
    from pytest_llmbench.history.queries import find_session, runs_of  # noqa: PLC0415
    from pytest_llmbench.session.folder import find_session as find_folder  # noqa: PLC0415
    from pytest_llmbench.session.folder import read_folder  # noqa: PLC0415
    from pytest_llmbench.session.refusals import refusals, without_refused  # noqa: PLC0415

    try:
        folder = find_folder(given, RUN_DIR)
    except ConfigError:
        folder = None
    if folder is not None:
        session = without_refused(read_folder(folder), replace(law, as_recorded=True))
        if refused := refusals(session):
            raise ConfigError("\n".join(refused))
        made = session.runs.values()
        return [run_of_record(run, law.wrong_work(run.recipe, run.topology)) for run in made], law.notes(made)
    if history is None:
        raise ConfigError(
            f"{given}: neither a folder nor a session in {RUN_DIR}, and the folder has no history to look it up in: "
            "`llmbench history import` makes one, or give --history"
        )
    with history.reading() as connection:
        known = find_session(connection, given)
    return runs_of(history, known), []


def _time(at: float) -> str:
    return utc(at).removesuffix(" UTC")
