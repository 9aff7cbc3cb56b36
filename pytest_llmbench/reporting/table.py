"""The verdict table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

_COLUMNS = ("run", "nodes", "statistic", "measured", "threshold", "verdict")
_REASON_WIDTH = 100


def render(rows: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield (verdict, line): a header, a line per test, and under it the reason where there is one.

    Args:
        rows: one mapping per test, with the properties its report carries. A test that measured
            nothing has an em dash there, never a number.
    """
    table = [[_cell(row, column) for column in _COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in [list(_COLUMNS), *table]) for i in range(len(_COLUMNS))]
    yield "", _line(_COLUMNS, widths)
    for row, cells in zip(rows, table, strict=True):
        verdict = str(row["verdict"])
        yield verdict, _line(cells, widths)
        reason = str(row.get("reason", ""))
        if reason:
            # Whole words only: a path cut at a hyphen cannot be copied.
            words = " ".join(reason.split())
            for line in textwrap.wrap(words, _REASON_WIDTH, break_on_hyphens=False, break_long_words=False):
                yield verdict, f"    {line}"
        if verdict in {"FAIL", "ERROR"} and row.get("run_record"):
            yield verdict, f"    run record: {row['run_record']}"


def _cell(row: Mapping[str, object], column: str) -> str:
    if column == "measured":
        value = row.get("value")
        return f"{value:,.6g} {row['unit']}" if isinstance(value, float | int) else "—"
    return str(row.get(column, "—")) or "—"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
