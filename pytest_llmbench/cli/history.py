"""`llmbench history`: import sessions, and ask what they say together."""

import csv
import datetime as dt
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
DEFAULT = "llmbench-history.db"


@contextmanager
def existing(url: str) -> Iterator["History"]:
    """Open a history that exists: a misspelt file must not become an empty one.

    Raises:
        ConfigError: see `open_history`; also if there is no such file.
    """
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415  # engines: `--help` starts sooner

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
    from pytest_llmbench.history.database import open_history  # noqa: PLC0415
    from pytest_llmbench.history.importing import About, import_sessions  # noqa: PLC0415

    with open_history(history) as opened:
        told = import_sessions(opened, paths, About(git_commit=commit, tags=tuple(tag or ())))
    if as_json:
        print_json({name: getattr(told, name) for name in type(told).__slots__})
    else:
        for line in (
            *(f"no record of a session in {path}" for path in told.empty),
            *told.refused,
            *told.doubts,
            str(told),
        ):
            _echo(line)
    if told.refused or not told.sessions:
        raise typer.Exit(1)


@app.command("list")
def list_(
    *,
    history: Where = DEFAULT,
    last: Annotated[int, typer.Option(min=1, help="Only the newest N.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    from pytest_llmbench.history.queries import list_sessions  # noqa: PLC0415

    with existing(history) as opened:
        sessions = list_sessions(opened, last)
    if as_json:
        print_json(sessions)
        return
    rows = [
        (
            each["id"], _time(each["began"]), each["system"], str(each["runs"]), str(each["checks"]),
            " ".join(f"{count} {word}" for word, count in sorted(each["verdicts"].items())), " ".join(each["tags"]),
            (each["git_commit"] or "")[:10],
        )
        for each in sessions
    ]  # fmt: skip
    print_table(("session", "began", "system", "runs", "checks", "verdicts", "tags", "commit"), rows)


@app.command(short_help="Show the records of a session.")
def show(session: OneSession, *, history: Where = DEFAULT, as_json: AsJson = False) -> None:
    """Show the records of a session, which may be named by the beginning of its id."""
    from pytest_llmbench.history.queries import show_session  # noqa: PLC0415

    with existing(history) as opened:
        told = show_session(opened, session)
    if as_json:
        print_json(told)
        return
    _echo(f"session {told['id']}, {_time(told['began'])}, system {told['system']}, cluster {told['cluster']}")
    for record in told["records"]:
        _echo(f"{record['about']} {record['name']}: {record['problem'] or _numbers(record['metrics'])}")
        if not record["counts"]:
            why = f"simulated {record['simulated']}" if record["simulated"] else "another record has the same steps"
            _echo(f"  is left out of series: {why}")
        for verdict in record["verdicts"]:
            threshold = f" {verdict['threshold']}" if verdict["threshold"] else ""
            _echo(f"  {verdict['verdict']} {verdict['test']}{threshold}")


@app.command(short_help="Give a session a name, for --compare-to tag:NAME.")
def tag(
    session: OneSession,
    name: Annotated[str, typer.Argument(help="The name.")],
    *,
    history: Where = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give a session a name, such as that of a baseline: `--compare-to tag:NAME` then means it."""
    from pytest_llmbench.history.importing import add_tag  # noqa: PLC0415
    from pytest_llmbench.history.queries import find_session  # noqa: PLC0415

    with existing(history) as opened, opened.writing() as connection:
        found = find_session(connection, session)
        add_tag(connection, found, name)
    if as_json:
        print_json({"session": found, "tag": name})
    else:
        _echo(f"{found} has the tag {name}")


@app.command()
def series(
    recipe: Annotated[str, typer.Argument(help="A recipe of the history.")],
    metric: Annotated[str, typer.Argument(help="A statistic of it.")],
    *,
    history: Where = DEFAULT,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest N.")] = None,
    number: Annotated[int | None, typer.Option("--series", help="Only this series: one machine and setup.")] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a number of a recipe over time. Apache Otava reads the CSV of one series."""
    from pytest_llmbench.history.queries import SeriesPoint, read_series  # noqa: PLC0415

    with existing(history) as opened:
        points = read_series(opened, recipe, metric, last=last, series=number)
    if as_json:
        print_json([point._asdict() for point in points])
    elif as_csv:
        _print_csv(SeriesPoint._fields, ({**point._asdict(), "time": _iso_time(point.time)} for point in points))
    else:
        rows = [
            (
                _time(each.time), each.session, each.run, f"{for_people(each.value)} {each.unit}",
                _interval(each.low, each.high), f"{each.nodes} × {each.hardware}", (each.git_commit or "")[:10],
            )
            for each in points
        ]  # fmt: skip
        print_table(("time", "session", "run", metric, "between", "nodes", "commit"), rows)


@app.command(short_help="Find the runs from which on a number was another.")
def changes(
    recipe: Annotated[str, typer.Argument(help="A recipe of the history.")],
    metric: Annotated[str, typer.Argument(help="A statistic of it.")],
    *,
    history: Where = DEFAULT,
    last: Annotated[int, typer.Option(min=2, help="Only the newest N runs.")] = 1000,
    p_value: Annotated[float, typer.Option(min=1e-12, max=0.5, help="Highest p of a change point.")] = 0.001,
    least_change: Annotated[float, typer.Option(min=0.0, help="Smallest change, percent.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Find the runs from which on a number of a recipe was another, for each machine and setup by itself."""
    from pytest_llmbench.history.change_points import change_points  # noqa: PLC0415
    from pytest_llmbench.history.queries import SeriesPoint, read_series  # noqa: PLC0415

    with existing(history) as opened:
        points = read_series(opened, recipe, metric, last=last)
    every: dict[int, list[SeriesPoint]] = {}
    for point in points:
        every.setdefault(point.series, []).append(point)
    found: list[dict[str, Any]] = []
    for number, of_one in every.items():
        values = [point.value for point in of_one]
        for change in change_points(values, p_value=p_value, least_change=least_change / 100):
            at = of_one[change.index]
            found.append(
                {
                    "series": number, "position": change.index, "session": at.session, "run": at.run, "time": at.time,
                    "git_commit": at.git_commit, "system": at.system, "nodes": at.nodes, "hardware": at.hardware,
                    "before": change.before, "after": change.after, "unit": at.unit,
                    "change": None if change.change is None else 100 * change.change, "p": change.p,
                    "worse": None if at.better is None else (change.after < change.before) == (at.better == "higher"),
                }
            )  # fmt: skip
    if as_json:
        print_json({"runs": len(points), "series": len(every), "changes": found})
        return
    _echo(f"{counted(len(points), 'run')} of {recipe} in {len(every)} series, {counted(len(found), 'change')}")
    words = {True: "worse", False: "better", None: ""}
    rows = [
        (
            _time(each["time"]), each["session"], str(each["position"]),
            f"{for_people(each['before'])} -> {for_people(each['after'])} {each['unit']}",
            "" if each["change"] is None else f"{each['change']:+.2f} %", words[each["worse"]], f"{each['p']:.1g}",
        )
        for each in found
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
    from pytest_llmbench.history.ledger import Rule, entries_of, list_devices  # noqa: PLC0415

    with existing(history) as opened:
        devices = list_devices(opened, node=node, device=device, rule=Rule(days=days, repeats=repeats))
        about = device or node
        entries = entries_of(opened, about, limit=last) if about is not None else []
    if as_json:
        print_json({"devices": [asdict(each) for each in devices], **({"entries": entries} if about else {})})
        return
    print_table(
        ("node", "kind", "device", "sessions", "last seen", "faults", "avoid"),
        [
            (
                each.node, each.kind, "" if each.kind == "node" else each.name, str(each.sessions), _time(each.last),
                str(each.faults) if each.kind == "node" else "", each.avoid or "" if each.kind == "node" else "",
            )
            for each in devices
        ],
    )  # fmt: skip
    for entry in entries:
        number = "" if entry["value"] is None else f" {for_people(entry['value'])} {entry['unit']}"
        fault = " (fault)" if entry["blames"] else ""
        told = f"{_time(entry['time'])} {entry['session']} {entry['device']}: {entry['what']}{number}{fault}: "
        _echo(told + " ".join(entry["said"].split()))


def _numbers(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    told = (f"{name} {for_people(each['value'])} {each['unit']}" for name, each in metrics.items())
    return ", ".join(told) or "no numbers"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{for_people(low)} - {for_people(high)}"


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _iso_time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, tz=dt.UTC).isoformat()


def _echo(line: str) -> None:
    typer.echo(harmless(line))


def _print_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns; as every command does."""
    print_rows([dict(zip(heads, row, strict=True)) for row in rows], as_json=False, columns=heads)
