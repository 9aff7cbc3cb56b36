"""A session for CI systems: evidence of each test as text, annotations of GitHub Actions, and a summary in Markdown.

A row has the properties of a test's report; if it was read from XML, its numbers are texts.
"""

import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_llmbench.core.quantity import bounds_for_people, for_people
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.verdict import FAILING, WORST_FIRST, SessionVerdict

_DIGITS = 6
# GitHub shows this many annotations of a step.
_MOST_ANNOTATIONS = 10
# GitHub takes at most 1 MiB a step.
_MOST_ROWS, _MOST_CAUSES, _LONGEST = 200, 20, 300
_MOST_ALIKE = 4  # nodes with the same verdict of a check that have a row each
_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")
_COLUMNS = ("Verdict", "Test", "Hosts", "Measured", "Energy", "Bound", "Record")
_TO_DO = {
    "ERROR": "Read the record and the log of the run: it cannot be judged before its problem is solved.",
    "FAIL": "Look at the cause and the hosts: run the checks on these nodes, and repeat the run on others.",
    "INCONCLUSIVE": "Measure more: `--llmbench-inconclusive rerun`, `--llmbench-repeat`, or more steps.",
    "INCOMPLETE": "Select the tests that the clause names, and let them be judged.",
}

# Properties of a test case in XML, the most wanted first.
PROPERTIES = (
    "verdict",  #: property verdict: `PASS`, `FAIL`, `INCONCLUSIVE`, `XFAIL`, `ERROR` or `SKIP`
    "test",  #: property test: node id, by which pytest selects the test
    "simulated",  #: property simulated: the fault of `--llmbench-simulate`
    "check",  #: property check: check
    "slot",  #: property slot: number of the node in the session, from 0; empty for all nodes together
    "clause",  #: property clause: an INCOMPLETE clause of `--llmbench-require`
    "run",  #: property run: name of the run; the first of several
    "recipe",  #: property recipe: recipe
    "runs",  #: property runs: names of the runs that are judged together
    "hosts",  #: property hosts: host names; of a check for one node, that node
    "statistic",  #: property statistic: the measured statistic; without a measurement, the reference's
    "value",  #: property value: the number; of several runs their mean, or that of the run that decided
    "unit",  #: property unit: unit of the number
    "threshold",  #: property threshold: the bound or bounds, with unit
    "baseline",  #: property baseline: sessions that the run was compared with
    "change",  #: property change: difference from the mean of the baseline, %
    "measured",  #: property measured: the first of a check's numbers, and how many more there are
    #: property bound: `bounded`, or `no bound` where neither a reference nor physics has one, so that a PASS leaves the
    #:  speed unjudged
    "bound",
    "record",  #: property record: path of the run record or health record, relative to the session's folder
    #: property run_seconds: seconds of the run, without its wait in the queue, or of the check for all nodes; a
    #:  measurement that several checks share counts for each
    "run_seconds",
    "severity",  #: property severity: [severity](validation.md#severities) of the worst finding
    "action",  #: property action: recommended action
    "reason",  #: property reason: first line of the reason, for any verdict but PASS
    #: property energy: energy of all GPUs for each token, as `0.0913 J/token`, or `unknown: ` and the reason; absent
    #:  without GPUs
    "energy",
    "unconfirmed",  #: property unconfirmed: [unconfirmed](#unconfirmed-numbers) facts
    "early_verdict",  #: property early_verdict: the step that decided, or the reason for the whole run
)
_MOST_PROPERTIES = 12

CaseRow = Mapping[str, Any]


def case_properties(row: CaseRow) -> dict[str, str]:
    """The properties of a test that its case in XML has, at most twelve; `verdicts.json` has all of them."""
    known = ((name, row.get(name)) for name in PROPERTIES)
    return dict(islice(((name, str(value)) for name, value in known if value not in {None, ""}), _MOST_PROPERTIES))


def evidence_lines(row: CaseRow, records: str) -> Iterator[str]:
    """Yield the evidence of a test, for systems that show the output of a test case alone.

    Args:
        row: the properties of the test's report.
        records: path of the session's folder for the reader of the lines.
    """
    low, high, alpha = (_number(row.get(name)) for name in ("low", "high", "alpha"))
    interval = "none"
    if low is not None and high is not None:
        sure = f", each end {for_people(100.0 * (1.0 - alpha), 6)} % sure" if alpha is not None else ""
        interval = f"{for_people(low, _DIGITS)} to {for_people(high, _DIGITS)} {row.get('unit') or ''}{sure}"
    yield f"verdict: {row.get('verdict')}"
    yield f"measured: {_format_measured(row) or 'nothing'}"
    yield f"bound: {_format_bound(row) or 'none'}"
    yield f"interval: {interval}"
    yield f"hosts: {', '.join(_hosts(row)) or 'none'}"
    yield f"record: {records}/{row['record']}" if row.get("record") else "record: none"
    for name in ("energy", "reason", "cause", "severity", "action", "simulated", "as_recorded"):
        if row.get(name):
            yield f"{name}: {' '.join(harmless(str(row[name])).split())}"


def annotate_tests(rows: Iterable[CaseRow], root: Path, *, warned: bool) -> Iterator[str]:
    """Yield an annotation of GitHub Actions for each test that failed, at most ten: the last then counts the others.

    Args:
        rows: the properties of each verdict.
        root: pytest's root folder, of which `file` is a part.
        warned: INCONCLUSIVE tests are warnings only.
    """
    marked = sorted((row for row in rows if row["verdict"] in FAILING), key=_rank)
    most = _MOST_ANNOTATIONS if len(marked) <= _MOST_ANNOTATIONS else _MOST_ANNOTATIONS - 1
    for row in marked[:most]:
        parts = [str(row.get("reason") or row.get("verdict"))]
        if (number := _format_measured(row)) and row.get("threshold"):
            parts.append(f"measured {number}, bound {_format_bound(row)}")
        parts += [f"{name}: {row[name]}" for name in ("cause", "action", "hosts") if row.get(name)]
        level = "warning" if warned and row["verdict"] == "INCONCLUSIVE" else "error"
        yield _annotation(level, f"{row['verdict']} {row['test']}", "\n".join(parts), _place(row, root))
    if (left := len(marked) - most) > 0:
        yield _annotation("error", "more tests failed", f"{left} more tests failed: see the summary of the job", {})


def _place(row: CaseRow, root: Path) -> dict[str, str]:
    """The test's file, relative to GitHub's checkout, and its line."""
    if not row.get("file"):
        return {}
    path = root / str(row["file"])
    checkout = os.environ.get("GITHUB_WORKSPACE")
    known = path.relative_to(checkout) if checkout and path.is_relative_to(checkout) else Path(str(row["file"]))
    return {"file": known.as_posix(), **({"line": str(row["line"])} if row.get("line") else {})}


def _annotation(level: str, title: str, message: str, place: Mapping[str, str]) -> str:
    def escape(text: str) -> str:
        return harmless(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    properties = {**place, "title": " ".join(harmless(title).split())}
    given = (f"{name}={escape(text).replace(':', '%3A').replace(',', '%2C')}" for name, text in properties.items())
    return f"::{level} {','.join(given)}::{escape(message)}"


def summary(verdict: SessionVerdict, rows: Sequence[CaseRow], records: str, notes: Iterable[str] = ()) -> Iterator[str]:
    """Yield the lines of the summary: the session's verdict, a table of its tests, causes, and what to do.

    Args:
        verdict: the verdict on the session.
        rows: the properties of each verdict. The worst come first, many nodes alike are one row, and the table ends
            after 200.
        records: path of the session's folder for the reader.
        notes: further sentences, which may quote foreign text.
    """
    counts = ", ".join(f"{verdict.counts[name]} {name}" for name in WORST_FIRST if verdict.counts.get(name))
    reason = markdown(verdict.reason)
    yield f"# Cluster verdict: {verdict.verdict}"
    yield ""
    yield f"{reason[0].upper()}{reason[1:]}." if reason else "Every test passed that was judged."
    yield ""
    yield f"{counts or 'no test'}. Exit code {verdict.exit_code}. Records: {markdown(records)}"
    if notes := [*notes]:
        yield ""
        yield from (f"- {markdown(note)}" for note in notes)
    if not rows:
        return
    columns = [name for name in _COLUMNS if name != "Energy" or any(row.get("energy") for row in rows)]
    shown = _merge(sorted(rows, key=lambda row: (_rank(row), "," in str(row.get("hosts")))))
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in shown[:_MOST_ROWS]:
        hosts = _hosts(row)
        places = f"{', '.join(hosts[:4])}{f' and {len(hosts) - 4} more' if len(hosts) > 4 else ''}"
        cells = (
            row["verdict"], row["test"], places, _format_measured(row), row.get("energy"), _format_bound(row),
            row.get("record"),
        )  # fmt: skip
        of_columns = (cell for name, cell in zip(_COLUMNS, cells, strict=True) if name in columns)
        yield f"| {' | '.join(markdown(str(cell or '')) for cell in of_columns)} |"
    if len(shown) > _MOST_ROWS:
        yield ""
        yield f"{len(shown) - _MOST_ROWS} more tests are in `junit.xml`."
    yield from _section("## Causes", [*_causes(sorted(rows, key=_rank))], "more")
    actions = dict.fromkeys(
        markdown(f"{row.get('host') or row.get('check')}: {row['action']}") for row in rows if row.get("action")
    )
    left = {str(row["verdict"]) for row in rows if not row.get("action")}
    general = [text for name, text in _TO_DO.items() if name in left]
    yield from _section(
        "## What to do", [*actions], "more actions are in the property `action` of `junit.xml`", general
    )


def _merge(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """The rows, with one for all nodes that have the same verdict from a check, if they are many."""
    alike: dict[object, list[CaseRow]] = {}
    for number, row in enumerate(rows):
        one_node = row.get("check") is not None and len(_hosts(row)) == 1
        alike.setdefault((row["verdict"], row["check"]) if one_node else number, []).append(row)
    merged: list[CaseRow] = []
    for same in alike.values():
        if len(same) <= _MOST_ALIKE:
            merged += same
        else:
            hosts = ",".join(host for row in same for host in _hosts(row))
            test = f"{same[0]['test']} and {len(same) - 1} more"
            merged.append({**same[0], "test": test, "hosts": hosts, "measured": ""})
    return merged


def _section(title: str, lines: Sequence[str], more: str, last: Sequence[str] = ()) -> Iterator[str]:
    """Yield a section with the first lines of many and the number of the others; none without lines."""
    rest = [f"{len(lines) - _MOST_CAUSES} {more}"] if len(lines) > _MOST_CAUSES else []
    if lines or last:
        yield from ("", title, "", *(f"- {text}" for text in (*lines[:_MOST_CAUSES], *rest, *last)))


def _causes(rows: Sequence[CaseRow]) -> Iterator[str]:
    """Yield each cause or reason once, with its first test and the number of others."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["verdict"] not in {"PASS", "SKIP"}:
            reason = str(row.get("cause") or row.get("reason") or "no reason is known")
            alike.setdefault((str(row["verdict"]), reason), []).append(str(row["test"]))
    for (verdict, reason), tests in alike.items():
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        yield f"**{markdown(verdict)}** {markdown(tests[0])}{more}: {markdown(reason)}"


def markdown(text: str) -> str:
    """Escape a foreign text: one line of Markdown, free of markup, HTML and table borders."""
    line = " ".join(harmless(text).split())
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
    return _SPECIAL.sub(r"\\\1", html.escape(short, quote=False)).replace("://", ":\u200b//")


def _rank(row: CaseRow) -> int:
    verdict = str(row["verdict"])
    return WORST_FIRST.index(verdict) if verdict in WORST_FIRST else -1


def _hosts(row: CaseRow) -> list[str]:
    return [*filter(None, str(row.get("hosts") or "").split(","))]


def _format_measured(row: CaseRow) -> str:
    """The measured number with its unit and statistic, or the text of a check; empty without a measurement."""
    value = _number(row.get("value"))
    if value is None:
        return str(row.get("measured") or "")
    return f"{for_people(value, _DIGITS)} {row.get('unit') or ''} ({row.get('statistic') or 'no statistic'})"


def _format_bound(row: CaseRow) -> str:
    """The bound of the test, with as many digits as the measured number; empty without one."""
    return bounds_for_people(str(row.get("threshold") or row.get("bound") or ""), _DIGITS, floor=row.get("floor"))


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
