"""Output of all commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.text import harmless

if TYPE_CHECKING:
    from pytest_llmbench.session.law import Law

RUN_DIR = Path("reports")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
AsRecorded = Annotated[
    bool, typer.Option("--as-recorded", help="Judge by the recipes in the records instead of today's.")
]
RunDir = Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the sessions.")]

# A file or a pipe gets each row in one line.
_WIDTH_OF_FILES = 100_000
# Between two columns.
_GAP = 2
_STYLES = {
    "ok": "green", "missing": "red", "wrong": "red", "PASS": "green", "FAIL": "red", "ERROR": "bold red",
    "SKIP": "yellow", "INCONCLUSIVE": "bold yellow", "better": "green", "worse": "red",
}  # fmt: skip


def law_of_today(*, as_recorded: bool) -> "Law":
    """The recipes of this folder and the installed ones, at both scales, which decide what had to run.

    Raises ConfigError for a wrong recipe file.
    """
    from pytest_llmbench.cli.rows import folders_of  # noqa: PLC0415  # with pytest and all engines
    from pytest_llmbench.cli.site.reading import call_in_site  # noqa: PLC0415
    from pytest_llmbench.core.recipe.recipes import recipes_at_scales  # noqa: PLC0415
    from pytest_llmbench.session.law import Law  # noqa: PLC0415

    try:
        folders = call_in_site(lambda config: folders_of(config, "recipes"))
    except ConfigError as error:
        return Law(as_recorded=as_recorded, unread=str(error))
    read = [scales for recipes in recipes_at_scales(folders).values() for scales in recipes.values()]
    of_today = {(recipe.name, scale): recipe for scales in read for scale, recipe in scales.items()}
    return Law(recipes=of_today, as_recorded=as_recorded)


def print_json(data: Any) -> None:
    """Print JSON; it escapes whatever a terminal would obey."""
    typer.echo(json.dumps(data, indent=1))


def print_facts(data: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print data as JSON for programs, or its lines for people."""
    if as_json:
        print_json(data)
    else:
        for line in lines:
            typer.echo(harmless(line))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print rows that have the same keys: whole as JSON, or these columns of them as a table."""
    if as_json:
        print_json([dict(row) for row in rows])
    else:
        names = columns or list(rows[0] if rows else ())
        print_table(names, [[row[name] for name in names] for row in rows])


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; on a terminal, words that mean good or bad have colours, and no word is cut.

    If not even the longest words of all columns fit side by side, each row becomes a paragraph.
    """
    from rich.cells import cell_len  # noqa: PLC0415  # heavy: `--help` and JSON need none of it
    from rich.console import Console  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [[harmless(_cell(value)) for value in row] for row in rows]
    columns = [*zip(titles, *cells, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    least = [max(cell_len(word) for cell in column for word in cell.split()) for column in columns]
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, color_system="auto")
    room = console.width - _GAP * (len(widths) - 1)
    with console.capture() as text:
        if sum(least) <= room:
            while sum(widths) > room:  # Rich would narrow a column to less than its longest word
                widths[max(range(len(widths)), key=lambda each: (widths[each] > least[each], widths[each]))] -= 1
            table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
            for title, width in zip(titles, widths, strict=True):
                table.add_column(title, width=width)
            for row in cells:
                table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
            console.print(table)
        else:
            for row in cells:
                console.print(Text(row[0], "bold"))
                others = (f"{title} {cell}" for title, cell in zip(titles[1:], row[1:], strict=True) if cell != "-")
                console.print(Padding(Text(", ".join(others)), (0, 0, 0, 4)))
    for line in text.get().splitlines():
        typer.echo(line.rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "-"
    return " ".join(str(value).split()) or "-"
