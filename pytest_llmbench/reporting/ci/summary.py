"""The summary of a session in Markdown: its verdict, a table of its tests, causes, and what to do."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.ci.case import format_bound, format_measured
from pytest_llmbench.reporting.ci.verdict import SessionVerdict

# GitHub takes at most 1 MiB a step.
_MOST_ROWS, _MOST_CAUSES, _LONGEST = 200, 20, 300
_ORDER = ("ERROR", "FAIL", "INCONCLUSIVE", "INCOMPLETE", "XFAIL", "SKIP", "PASS")
_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")
_COLUMNS = ("Verdict", "Test", "Hosts", "Measured", "Bound", "Record")
_TO_DO = {
    "ERROR": "Read the record and the log of the run: it cannot be judged before its problem is solved.",
    "FAIL": "Look at the cause and the hosts: run the checks on these nodes, and repeat the run on others.",
    "INCONCLUSIVE": "Measure more: `--llmbench-inconclusive rerun`, `--llmbench-repeat`, or more steps.",
    "INCOMPLETE": "Select the tests that the clause names, and let them be judged.",
}


def summary(
    verdict: SessionVerdict, rows: Sequence[Mapping[str, Any]], records: str, notes: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the lines of the summary.

    Args:
        verdict: the verdict on the session.
        rows: the properties of each verdict; the worst come first, and the table ends after 200.
        records: path of the session's folder for the reader.
        notes: further sentences, which may quote foreign text.
    """
    counts = ", ".join(f"{verdict.counts[name]} {name}" for name in _ORDER if verdict.counts.get(name))
    yield f"# Cluster verdict: {verdict.verdict}"
    yield ""
    yield f"{_sentence(markdown(verdict.reason)) or 'Every test passed that was judged.'}"
    yield ""
    yield f"{counts or 'no test'}. Exit code {verdict.exit_code}. Records: {markdown(records)}"
    if notes := [*notes]:
        yield ""
        yield from (f"- {markdown(note)}" for note in notes)
    if not rows:
        return
    shown = sorted(rows, key=lambda row: _rank(str(row["verdict"])))
    yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|{'---|' * len(_COLUMNS)}"
    for row in shown[:_MOST_ROWS]:
        yield f"| {' | '.join(_cells(row))} |"
    if len(rows) > _MOST_ROWS:
        yield ""
        yield f"{len(rows) - _MOST_ROWS} more tests are in `junit.xml`."
    yield from _causes(shown)
    yield from _to_do(shown)


def markdown(text: str) -> str:
    """Escape a foreign text: one line of Markdown, free of markup, HTML and table borders."""
    line = " ".join(harmless(text).split())
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
    return _SPECIAL.sub(r"\\\1", html.escape(short, quote=False)).replace("://", ":\u200b//")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    hosts = [*filter(None, str(row.get("hosts") or "").split(","))]
    places = f"{', '.join(hosts[:4])}{f' and {len(hosts) - 4} more' if len(hosts) > 4 else ''}"
    cells = (row["verdict"], row["test"], places, format_measured(row), format_bound(row), row.get("record"))
    yield from (markdown(str(cell or "")) for cell in cells)


def _causes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each cause or reason once, with its first test and the number of others."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] in {"PASS", "SKIP"}:
            continue
        parts = [str(row[name]) for name in ("cause", "reason") if row.get(name)]
        alike.setdefault((str(row["verdict"]), ": ".join(parts[:1])), []).append(str(row["test"]))
    if not alike:
        return
    yield ""
    yield "## Causes"
    yield ""
    for (verdict, reason), tests in [*alike.items()][:_MOST_CAUSES]:
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        yield f"- **{markdown(verdict)}** {markdown(tests[0])}{more}: {markdown(reason) or 'no reason is known'}"
    if len(alike) > _MOST_CAUSES:
        yield f"- {len(alike) - _MOST_CAUSES} more"


def _to_do(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    actions = dict.fromkeys(
        f"{row.get('host') or row.get('check')}: {row['action']}" for row in rows if row.get("action")
    )
    general = [
        text for name, text in _TO_DO.items() if any(row["verdict"] == name and not row.get("action") for row in rows)
    ]
    if not (actions or general):
        return
    yield ""
    yield "## What to do"
    yield ""
    yield from (f"- {markdown(action)}" for action in [*actions][:_MOST_CAUSES])
    if len(actions) > _MOST_CAUSES:
        yield f"- {len(actions) - _MOST_CAUSES} more actions are in the property `action` of `junit.xml`"
    yield from (f"- {text}" for text in general)


def _rank(verdict: str) -> int:
    return _ORDER.index(verdict) if verdict in _ORDER else -1
