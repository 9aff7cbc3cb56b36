"""`llmbench watch`, `report` and `prune`: sessions, by their folders."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pytest_llmbench.cli.history import DEFAULT, Where
from pytest_llmbench.cli.output import RUN_DIR, AsJson, AsRecorded, RunDir, law_of_today, print_facts, print_rows
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire import layout

if TYPE_CHECKING:
    from pytest_llmbench.session.law import Law
    from pytest_llmbench.session.live.snapshot import Observation

# Shells show Ctrl-C by this code.
_LEFT = 130
_LOOK_S = 1.0
# Rows of the terminal that the table leaves to the command above it.
_ROOM = 2
_OUTPUT = "File, or folder of csv; without it, report.html in the session's folder, or SESSION-FORMAT in this one."

OneSession = Annotated[
    str | None,
    typer.Argument(metavar="SESSION", help="Folder of the session, or its id in --run-dir; without it, the newest."),
]


def report_session(
    session: OneSession = None,
    *,
    form: Annotated[
        Literal["html", "openmetrics", "csv"],
        typer.Option("--format", help="A page for people, numbers for Prometheus, or tables."),
    ] = "html",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="PATH", help=_OUTPUT)] = None,
    history: Where = DEFAULT,
    run_dir: RunDir = RUN_DIR,
    as_recorded: AsRecorded = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a session, from its records alone: one HTML file that needs no network, or its numbers.

    Exit with 1 if a run's record contradicts itself or another file, or has another recipe than this folder.
    """
    from pytest_llmbench.session.folder import find_session, read_folder  # noqa: PLC0415  # heavy
    from pytest_llmbench.session.refusals import without_refused  # noqa: PLC0415

    folder, law = find_session(session, run_dir), law_of_today(as_recorded=as_recorded)
    if form != "html":
        _write_numbers(folder, law, form, output, as_json=as_json)
        return
    from pytest_llmbench.reporting.html.page import write_page  # noqa: PLC0415
    from pytest_llmbench.reporting.html.rows import KINDS  # noqa: PLC0415

    data, path = without_refused(read_folder(folder), law), output or folder / layout.PAGE
    counts = write_page(data, path, history if "://" in history or Path(history).exists() else None)
    broken = [f"{about} {name}: {reason}" for (about, name), reason in data.broken.items()]
    verdicts = {KINDS[kind]: number for kind, number in counts.items()}
    facts = {"report": str(path), "session": data.id, "verdicts": verdicts, "damage": [*broken, *data.damage]}
    refused = [f"{about} {name} is refused: {reason}" for (about, name), reason in data.refused.items()]
    print_facts({**facts, "notes": data.notes}, [f"report: {path}"], as_json=as_json)
    for line in (*data.notes, *(f"record of {line}" for line in broken), *data.damage, *refused):
        typer.echo(harmless(line), err=True)
    if refused:
        raise typer.Exit(1)


def _write_numbers(folder: Path, law: "Law", form: str, output: Path | None, *, as_json: bool) -> None:
    from pytest_llmbench.reporting.base import read_finished  # noqa: PLC0415
    from pytest_llmbench.reporting.export import openmetrics, samples_of, write_csv  # noqa: PLC0415

    finished, name = read_finished(folder, law), folder.resolve().name
    if form == "csv":
        paths = write_csv(finished, output or Path(f"{name}-csv"))
    else:
        paths = [output or Path(f"{name}-openmetrics.prom")]
        write_text(paths[0], openmetrics(samples_of(finished)))  # a collector sees the old file or the new one
    notes = law.notes(finished.runs.values())
    print_facts({"written": [*map(str, paths)], "notes": notes}, map(str, paths), as_json=as_json)
    for note in notes:
        typer.echo(harmless(note), err=True)


def prune_sessions(
    *,
    run_dir: RunDir = RUN_DIR,
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
    from pytest_llmbench.cli.pruning import choose, delete  # noqa: PLC0415  # pydantic

    if older_than is None and keep is None:
        raise ConfigError("give --older-than DAYS, --keep N, or both")
    rows = choose(run_dir, older_than, keep)
    chosen = [row for row in rows if row["fate"] == "delete"]
    for row in chosen if yes else ():
        row["why"] = delete(run_dir / row["session"])
        row["fate"] = "keep" if row["why"] else "deleted"
    print_rows(rows, as_json=as_json, columns=("session", "age_days", "bytes", "fate", "why"))
    if not as_json:
        sizes, rest = [row["bytes"] for row in chosen if row["fate"] != "keep"], "" if yes else ": --yes deletes them"
        typer.echo(f"{len(sizes)} of {len(rows)} sessions, {sum(sizes) / 1e6:,.1f} MB{rest}")


def watch_session(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="A session's id or folder, or `latest`.")
    ] = "latest",
    *,
    run_dir: RunDir = RUN_DIR,
    once: Annotated[bool, typer.Option("--once", help="Print the present state, and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a session from another terminal until it ends.

    Ctrl-C ends the watching, and leaves the session alone. Exit code 0: it ended well, or goes on (--once). 1: it did
    not end well, or its process gives no sign of life. 2: there is no such session.
    """
    from pytest_llmbench.session.folder import find_session  # noqa: PLC0415  # pydantic
    from pytest_llmbench.session.live.snapshot import Watcher  # noqa: PLC0415

    folder = find_session(session, run_dir)
    watcher, show = Watcher(folder), _shower(once=once, as_json=as_json)
    code = None
    try:
        while code is None:
            observation = watcher.look()
            if once and observation.doubtful and not watcher.is_sure:
                time.sleep(_LOOK_S / 4)
                continue
            code = _exit_code(observation, once=once)
            show(observation, _notes(observation, folder), code is not None)
            if code is None:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        sys.stderr.write("\nno longer watched; the session goes on\n")
        code = _LEFT
    raise typer.Exit(code or 0)


def _exit_code(observation: "Observation", *, once: bool) -> int | None:
    """The exit code, or None while there is something left to watch."""
    if observation.over:
        return int(observation.snapshot.exit_code != 0)
    if observation.silent_s:
        return 1
    return 0 if once and not observation.torn else None


def _notes(observation: "Observation", folder: Path) -> list[str]:
    """The lines under a snapshot: its age, the missing sign of life, or the end of the session."""
    notes, snapshot = [], observation.snapshot
    if observation.torn:
        notes.append(f"this is the state before: {observation.torn}")
    if observation.silent_s:
        notes.append(
            f"no sign of life for {observation.silent_s:.0f} s from process {snapshot.pid} on {snapshot.host}: this "
            f"is its last state. If the process is dead, call pytest as before with --resume={folder.name}"
        )
    if observation.over:
        notes.append(f"{snapshot.word} (exit code {snapshot.exit_code})")
    return [harmless(note) for note in notes]


def _shower(*, once: bool, as_json: bool) -> Callable[["Observation", list[str], bool], None]:
    """Make the function that shows a snapshot, its notes, and, if it is the last one, the end."""
    from pytest_llmbench.reporting.live import StateLines, counts, table_lines  # noqa: PLC0415  # pydantic
    from pytest_llmbench.reporting.screen import BlockScreen  # noqa: PLC0415

    changes, screen = StateLines(first_s=0.0), BlockScreen(sys.stdout)
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"", "dumb"}

    def table(observation: "Observation", width: int, height: int, notes: Sequence[str] = ()) -> list[str]:
        coloured = on_terminal and not os.environ.get("NO_COLOR")
        return table_lines(observation.snapshot, width, height, notes, coloured=coloured)

    def show(observation: "Observation", notes: list[str], last: bool) -> None:
        width, height = shutil.get_terminal_size() if on_terminal else (200, 0)
        if as_json:
            state = "ended" if observation.over else "silent" if observation.silent_s else "running"
            facts = {"silent_s": observation.silent_s, "torn": observation.torn or None, "notes": notes}
            lines = [json.dumps({"state": state, **facts, "snapshot": observation.snapshot.model_dump(mode="json")})]
        elif once:
            lines = [*table(observation, width, len(observation.snapshot.tasks) + 2), *notes]
        elif on_terminal:
            screen.draw(table(observation, max(10, width - 1), max(1, height - _ROOM), () if last else notes), width)
            lines = ["", *notes] if last else []  # the end of the session stays under the table
        else:
            lines = [*changes.update(observation.snapshot), *([counts(observation.snapshot)] if last else []), *notes]
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in lines)
        sys.stdout.flush()

    return show
