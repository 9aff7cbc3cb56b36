"""`llmbench watch`: a session, followed from another terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_llmbench.cli.output import AsJson
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from pytest_llmbench.session.live.snapshot import Sight

# As shells say that Ctrl-C ended a command.
_LEFT = 130
_LOOK_S = 1.0
# Rows of the terminal that the table leaves to the command above it.
_ROOM = 2


def watch_session(
    session: Annotated[str, typer.Argument(help="A session's id or folder, or `latest`.")] = "latest",
    *,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sessions.")] = Path("reports"),
    once: Annotated[bool, typer.Option("--once", help="Print how it stands, and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a session from another terminal until it ends.

    Ctrl-C ends the watching, and leaves the session alone. Exit code 0: it ended well, or goes on (--once). 1: it did
    not end well, or its process gives no sign of life. 2: there is no such session.
    """
    from pytest_llmbench.session.folder import find_session  # noqa: PLC0415 - pydantic
    from pytest_llmbench.session.live.snapshot import Watcher  # noqa: PLC0415 - likewise

    folder = find_session(session, run_dir)
    watcher = Watcher(folder)
    show = _json if as_json else _table() if _can_redraw() and not once else _lines(once=once)
    code = None
    try:
        while code is None:
            sight = watcher.look()
            if once and sight.doubtful and not watcher.is_sure:
                time.sleep(_LOOK_S / 4)
                continue
            code = _exit_code(sight, once=once)
            show(sight, _notes(sight, folder, run_dir), code is not None)
            if code is None:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        sys.stderr.write("\nno longer watched; the session goes on\n")
        code = _LEFT
    raise typer.Exit(code or 0)


_Show = Callable[["Sight", list[str], bool], None]


def _exit_code(sight: Sight, *, once: bool) -> int | None:
    """The exit code, where nothing is left to watch."""
    if sight.over:
        return int(sight.snapshot.exit_code != 0)
    if sight.silent_s:
        return 1
    return 0 if once and not sight.torn else None


def _notes(sight: Sight, folder: Path, run_dir: Path) -> list[str]:
    """News that a picture cannot show."""
    told, snapshot = [], sight.snapshot
    if sight.torn:
        told.append(f"shown is how it stood before: {sight.torn}")
    if sight.silent_s:
        where = "" if run_dir == Path("reports") else f" --run-dir {run_dir}"
        told.append(
            f"no sign of life for {sight.silent_s:.0f} s from process {snapshot.pid} on {snapshot.host}: shown is how "
            f"it stood then. If the process is dead, go on with: llmbench resume {folder.name}{where}"
        )
    if sight.over:
        told.append(f"{snapshot.word} (exit code {snapshot.exit_code})")
    return [harmless(text) for text in told]


def _can_redraw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"", "dumb"}


def _json(sight: Sight, notes: list[str], last: bool) -> None:  # noqa: ARG001 - as the others
    """An object a line: a session that goes on has many."""
    told: dict[str, Any] = {
        "state": "ended" if sight.over else "silent" if sight.silent_s else "running",
        "silent_s": sight.silent_s,
        "torn": sight.torn or None,
        "notes": notes,
        "snapshot": sight.snapshot.model_dump(mode="json"),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _lines(*, once: bool) -> _Show:
    """Plain lines: each change of state; with --once, every run."""
    from pytest_llmbench.reporting.live.lines import StateLines  # noqa: PLC0415 - pydantic
    from pytest_llmbench.reporting.live.table import console_for, table_lines  # noqa: PLC0415 - likewise
    from pytest_llmbench.reporting.live.words import counts  # noqa: PLC0415 - likewise

    lines = StateLines(first_s=0.0)

    def show(sight: Sight, notes: list[str], last: bool) -> None:
        if once:
            wide = _can_redraw()
            console = console_for(_size()[0] if wide else 200, coloured=wide and not os.environ.get("NO_COLOR"))
            told = table_lines(sight.snapshot, console, len(sight.snapshot.tasks) + 2)
        else:
            told = [*lines.of(sight.snapshot), *([counts(sight.snapshot)] if last else [])]
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in (*told, *notes)))
        sys.stdout.flush()

    return show


def _table() -> _Show:
    """A table that is redrawn in its place."""
    from pytest_llmbench.reporting.live.screen import BlockScreen  # noqa: PLC0415 - costs `--help` time
    from pytest_llmbench.reporting.live.table import console_for, table_lines  # noqa: PLC0415 - pydantic

    screen = BlockScreen(sys.stdout)

    def show(sight: Sight, notes: list[str], last: bool) -> None:
        width, height = _size()
        console = console_for(max(10, width - 1), coloured=not os.environ.get("NO_COLOR"))
        lines = table_lines(sight.snapshot, console, max(1, height - _ROOM), () if last else notes)
        screen.draw(lines, width)
        if last:  # the last line says how it ended
            sys.stdout.write("".join(f"\n{note}" for note in notes) + "\n")
            sys.stdout.flush()

    return show


def _size() -> tuple[int, int]:
    return shutil.get_terminal_size()
