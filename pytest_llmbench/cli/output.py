"""What all commands print alike: tables for people, JSON for programs."""

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from pytest_llmbench.core.text import harmless

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

# Narrower, a text would stand in a column of single words.
_LEAST_WIDTH = 30


def print_json(data: Any) -> None:
    """Print JSON, which any program reads; a text in it can hold nothing that a terminal obeys."""
    typer.echo(json.dumps(data, indent=1))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print rows that have the same keys, whole as JSON, or these columns of them as a table."""
    if as_json:
        print_json([dict(row) for row in rows])
        return
    names = columns or list(rows[0] if rows else ())
    table = [names, *([_cell(row[name]) for name in names] for row in rows)]
    for line in _lines(table):
        typer.echo(line)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "-"
    return " ".join(harmless(str(value)).split()) or "-"


def _lines(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side; on a terminal the last one is wrapped, and a file has each row in a line."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)][:-1]
    indent = sum(widths) + 2 * len(widths)
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns - indent) if sys.stdout.isatty() else sys.maxsize
    lines = []
    for *cells, last in table:
        head = "".join(f"{cell.ljust(size)}  " for cell, size in zip(cells, widths, strict=True))
        first, *more = textwrap.wrap(last, width, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{head}{first}".rstrip(), *(f"{' ' * indent}{part}" for part in more)]
    return lines
