"""`llmbench history`: import sessions into a database, and print what it has about sessions, series and nodes."""

import csv
import datetime as dt
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_llmbench.cli.output import AsJson, print_json, print_rows
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from pytest_llmbench.history.database import History

app = typer.Typer(help="Keep the records of many sessions in a database, and ask it.", no_args_is_help=True)

_HELP = "The history: a file (SQLite), or postgresql://USER@HOST/DATABASE"
#: variable LLMBENCH_HISTORY: the history that `llmbench history` and `llmbench compare` use without `--history`
Where = Annotated[str, typer.Option("--history", envvar="LLMBENCH_HISTORY", metavar="URL", help=_HELP)]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
OneSession = Annotated[str, typer.Argument(help="Id of a session, or its beginning.")]
Recipe = Annotated[str, typer.Argument(help="A recipe of the history.")]
Statistic = Annotated[str, typer.Argument(help="A statistic of it.")]
DEFAULT = "llmbench-history.db"


@contextmanager
def existing(url: str) -> Iterator["History"]:
    """Open a history that exists: a misspelt file must not become an empty one.

    Raises:
        ConfigError: see `open_history`; also if there is no such file.
    """
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415  # `--help` starts sooner

    if "://" not in url and not Path(url).expanduser().exists():
        raise ConfigError(f"there is no history {url}: `llmbench history import` makes one, or give --history")
    with open_history(url) as history:
        yield history


@app.command("import")
def import_(
    paths: Annotated[list[Path], typer.Argument(help="Folders of sessions, or folders that have them.")],
    *,
    history: Where = DEFAULT,
    tag: Annotated[list[str] | None, typer.Option(help="A name for these sessions.")] = None,
    commit: Annotated[str | None, typer.Option(help="The git commit that they tested.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import the records of sessions, each once. Exit with 1 if one is damaged, was changed, or none is there."""
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415  # `--help` starts sooner
    from pytest_llmbench.history.importing import About, import_sessions  # noqa: PLC0415

    with open_history(history) as opened:
        imported = import_sessions(opened, paths, About(git_commit=commit, tags=tuple(tag or ())))
    if as_json:
        print_json(asdict(imported))
    else:
        empty = (f"no record of a session in {path}" for path in imported.empty)
        for line in (*empty, *imported.refused, *imported.doubts, str(imported)):
            _echo(line)
    if imported.refused or not imported.sessions:
        raise typer.Exit(1)


@app.command("list")
def list_(
    *,
    history: Where = DEFAULT,
    last: Annotated[int, typer.Option(min=1, help="Only the newest N.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    from pytest_llmbench.history.queries import list_sessions  # noqa: PLC0415  # `--help` starts sooner

    with existing(history) as opened:
        sessions = list_sessions(opened, last)
    if as_json:
        print_json(sessions)
        return
    rows = [
        (
            session["id"], _time(session["began"]), session["system"], str(session["runs"]), str(session["checks"]),
            " ".join(f"{count} {word}" for word, count in sorted(session["verdicts"].items())),
            " ".join(session["tags"]), (session["git_commit"] or "")[:10],
        )
        for session in sessions
    ]  # fmt: skip
    print_table(("session", "began", "system", "runs", "checks", "verdicts", "tags", "commit"), rows)


@app.command(short_help="Show the records of a session.")
def show(session: OneSession, *, history: Where = DEFAULT, as_json: AsJson = False) -> None:
    """Show the records of a session, which may be named by the beginning of its id."""
    from pytest_llmbench.history.queries import show_session  # noqa: PLC0415  # `--help` starts sooner

    with existing(history) as opened:
        shown = show_session(opened, session)
    if as_json:
        print_json(shown)
        return
    _echo(f"session {shown['id']}, {_time(shown['began'])}, system {shown['system']}, cluster {shown['cluster']}")
    for record in shown["records"]:
        numbers = (f"{name} {for_people(row['value'])} {row['unit']}" for name, row in record["metrics"].items())
        _echo(f"{record['about']} {record['name']}: {record['problem'] or ', '.join(numbers) or 'no numbers'}")
        if not record["counts"]:
            is_copy = "another record has the same steps"
            reason = f"simulated {record['simulated']}" if record["simulated"] else is_copy
            _echo(f"  is left out of series: {reason}")
        for verdict in record["verdicts"]:
            _echo(f"  {verdict['verdict']} {verdict['test']} {verdict['threshold'] or ''}".rstrip())


@app.command(short_help="Give a session a name, for --llmbench-compare-to tag:NAME.")
def tag(
    session: OneSession,
    name: Annotated[str, typer.Argument(help="The name.")],
    *,
    history: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give a session a name, such as that of a baseline: `--llmbench-compare-to tag:NAME` then means it."""
    from pytest_llmbench.history.importing import add_tag  # noqa: PLC0415  # `--help` starts sooner
    from pytest_llmbench.history.queries import find_session  # noqa: PLC0415

    with existing(history) as opened, opened.writing() as connection:
        tagged = find_session(connection, session)
        add_tag(connection, tagged, name)
    if as_json:
        print_json({"session": tagged, "tag": name})
    else:
        _echo(f"{tagged} has the tag {name}")


@app.command()
def series(
    recipe: Recipe,
    metric: Statistic,
    *,
    history: Where = DEFAULT,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest N.")] = None,
    number: Annotated[int | None, typer.Option("--series", help="Only this series: one machine and setup.")] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a number of a recipe over time. Apache Otava reads the CSV of one series."""
    from pytest_llmbench.history.queries import SeriesPoint, read_series  # noqa: PLC0415  # `--help` starts sooner

    with existing(history) as opened:
        points = read_series(opened, recipe, metric, last=last, series=number)
    if as_json:
        print_json([point._asdict() for point in points])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(SeriesPoint._fields)
        for point in points:
            writer.writerow(point._replace(time=dt.datetime.fromtimestamp(point.time, tz=dt.UTC).isoformat()))  # type: ignore[arg-type]
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


@app.command(short_help="Find the runs from which on a number was another.")
def changes(
    recipe: Recipe,
    metric: Statistic,
    *,
    history: Where = DEFAULT,
    last: Annotated[int, typer.Option(min=2, help="Only the newest N runs.")] = 1000,
    p_value: Annotated[float, typer.Option(min=1e-12, max=0.5, help="Highest p of a change point.")] = 0.001,
    least_change: Annotated[float, typer.Option(min=0.0, help="Smallest change, percent.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Find the runs from which on a number of a recipe was another, for each machine and setup by itself."""
    from pytest_llmbench.history.change_points import change_points  # noqa: PLC0415  # `--help` starts sooner
    from pytest_llmbench.history.queries import SeriesPoint, read_series  # noqa: PLC0415

    with existing(history) as opened:
        points = read_series(opened, recipe, metric, last=last)
    by_series: dict[int, list[SeriesPoint]] = {}
    for point in points:
        by_series.setdefault(point.series, []).append(point)
    steps: list[dict[str, Any]] = []
    for number, of_series in by_series.items():
        values = [point.value for point in of_series]
        for change in change_points(values, p_value=p_value, least_change=least_change / 100):
            at = of_series[change.index]
            steps.append(
                {
                    "series": number, "position": change.index, "session": at.session, "run": at.run, "time": at.time,
                    "git_commit": at.git_commit, "system": at.system, "nodes": at.nodes, "hardware": at.hardware,
                    "before": change.before, "after": change.after, "unit": at.unit,
                    "change": None if change.change is None else 100 * change.change, "p": change.p,
                    "worse": None if at.better is None else (change.after < change.before) == (at.better == "higher"),
                }
            )  # fmt: skip
    if as_json:
        print_json({"runs": len(points), "series": len(by_series), "changes": steps})
        return
    _echo(f"{counted(len(points), 'run')} of {recipe} in {len(by_series)} series, {counted(len(steps), 'change')}")
    words = {True: "worse", False: "better", None: ""}
    rows = [
        (
            _time(step["time"]), step["session"], str(step["position"]),
            f"{for_people(step['before'])} -> {for_people(step['after'])} {step['unit']}",
            "" if step["change"] is None else f"{step['change']:+.2f} %", words[step["worse"]], f"{step['p']:.1g}",
        )
        for step in steps
    ]  # fmt: skip
    if rows:
        print_table(("since", "session", "position", metric, "change", "verdict", "p"), rows)


@app.command(short_help="List nodes and GPUs with their faults.")
def ledger(
    *,
    node: Annotated[str | None, typer.Option(help="Print all entries of this node and its parts.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Print all entries of one device, such as the UUID of a GPU.")
    ] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Days for which a fault counts.")] = 14.0,
    repeats: Annotated[int, typer.Option(min=1, help="Sessions with a fault from which on to avoid a node.")] = 2,
    last: Annotated[int, typer.Option(min=1, help="Only the newest N entries.")] = 100,
    history: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List nodes, GPUs and other parts with their faults, and which nodes to avoid."""
    from pytest_llmbench.history.ledger import Rule, entries_of, list_devices  # noqa: PLC0415  # `--help` starts sooner

    with existing(history) as opened:
        devices = list_devices(opened, node=node, device=device, rule=Rule(days=days, repeats=repeats))
        name = device or node
        entries = entries_of(opened, name, limit=last) if name is not None else []
    if as_json:
        print_json({"devices": [asdict(row) for row in devices], **({"entries": entries} if name else {})})
        return
    rows = []
    for row in devices:
        faults = ("", str(row.faults), row.avoid or "") if row.kind == "node" else (row.name, "", "")
        rows.append((row.node, row.kind, faults[0], str(row.sessions), _time(row.last), *faults[1:]))
    print_table(("node", "kind", "device", "sessions", "last seen", "faults", "avoid"), rows)
    for entry in entries:
        number = "" if entry["value"] is None else f" {for_people(entry['value'])} {entry['unit']}"
        fault = " (fault)" if entry["blames"] else ""
        what = f"{entry['device']}: {entry['what']}{number}{fault}: {' '.join(entry['said'].split())}"
        _echo(f"{_time(entry['time'])} {entry['session']} {what}")


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _echo(line: str) -> None:
    typer.echo(harmless(line))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as every command does."""
    print_rows([dict(zip(heads, row, strict=True)) for row in rows], as_json=False, columns=heads)
