"""Annotations of GitHub Actions: lines on standard output that mark the file and line of a test in the web page."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.ci.case import format_bound, format_measured

# GitHub shows this many of a step.
_MOST = 10
_LEVELS = {"FAIL": "error", "ERROR": "error", "INCONCLUSIVE": "error"}


def annotate_tests(rows: Iterable[Mapping[str, Any]], root: Path, *, warned: bool) -> Iterator[str]:
    """Yield a line for each test that failed, at most ten: the last then counts the others.

    Args:
        rows: the properties of each verdict.
        root: pytest's root folder, of which `file` is a part.
        warned: INCONCLUSIVE tests are warnings only.
    """
    marked = [row for row in rows if row["verdict"] in _LEVELS]
    marked.sort(key=lambda row: ("ERROR", "FAIL", "INCONCLUSIVE").index(str(row["verdict"])))
    most = _MOST if len(marked) <= _MOST else _MOST - 1
    for row in marked[:most]:
        level = "warning" if warned and row["verdict"] == "INCONCLUSIVE" else _LEVELS[str(row["verdict"])]
        yield _command(level, f"{row['verdict']} {row['test']}", _message(row), _place(row, root))
    if (left := len(marked) - most) > 0:
        yield _command("error", "more tests failed", f"{left} more tests failed: see the summary of the job", {})


def _message(row: Mapping[str, Any]) -> str:
    parts = [str(row.get("reason") or row.get("verdict"))]
    if (number := format_measured(row)) and row.get("threshold"):
        parts.append(f"measured {number}, bound {format_bound(row)}")
    parts += [f"{name}: {row[name]}" for name in ("cause", "action", "hosts") if row.get(name)]
    return harmless("\n".join(parts))


def _place(row: Mapping[str, Any], root: Path) -> dict[str, str]:
    """The test's file, relative to GitHub's checkout, and its line."""
    if not row.get("file"):
        return {}
    path = root / str(row["file"])
    checkout = os.environ.get("GITHUB_WORKSPACE")  #: variable GITHUB_WORKSPACE: files of annotations are relative to it
    known = path.relative_to(checkout) if checkout and path.is_relative_to(checkout) else Path(str(row["file"]))
    return {"file": known.as_posix(), **({"line": str(row["line"])} if row.get("line") else {})}


def _command(level: str, title: str, message: str, place: Mapping[str, str]) -> str:
    properties = {**place, "title": " ".join(harmless(title).split())}
    given = ",".join(f"{name}={_escape(value, of_property=True)}" for name, value in properties.items())
    return f"::{level} {given}::{_escape(message)}"


def _escape(text: str, *, of_property: bool = False) -> str:
    """Escape line feeds for GitHub, and in a property also commas and colons."""
    plain = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return plain.replace(":", "%3A").replace(",", "%2C") if of_property else plain
