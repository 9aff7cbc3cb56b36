"""The tables of a session on the terminal: the verdicts on runs, and the health of nodes."""

import textwrap
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.paths import shown_path
from pytest_llmbench.core.quantity import bounds_for_people, for_people, listed
from pytest_llmbench.reporting.verdict import FAILING, WORST_FIRST

_COLUMNS = ("run", "nodes", "statistic", "measured", "energy", "threshold", "verdict", "reference")
# Shown for a check that passes without a bound on its measured values.
NO_BOUND = "no bound"
# Properties of a run that are under its first test.
_OF_RUN = {"findings": "finding", "unconfirmed": "unconfirmed", "settings": "settings", "energy": "energy"}
# Consecutive tests that share these have their reason under the last of them.
_ALIKE = ("verdict", "reason", "cause", "run_record")


def render(
    rows: Sequence[Mapping[str, object]], width: int, explained: Container[object] = ()
) -> Iterator[tuple[str, str]]:
    """Yield (verdict, line): a header, a line per test, and under it the reason if there is one.

    Findings about a run are under its first test, in the colour of a hint. If several runs were judged together, their
    numbers are under each test.

    Args:
        rows: the properties of each test's report. A missing number is an em dash.
        width: of the terminal; the names of references are left out if the table would be wider.
        explained: tests whose reason the terminal shows elsewhere.
    """
    known = any(row.get("energy") and not _is_unknown(row["energy"]) for row in rows)
    columns = [name for name in _COLUMNS if name != "energy" or known]
    table = [columns, *([_cell(row, column) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    if sum(widths) + 2 * len(widths[1:]) > width or not any(row.get("reference") for row in rows):
        del widths[-1]
    yield "", _line(columns, widths)
    followings: list[Mapping[str, object]] = [*rows[1:], {}]
    shown: set[object] = set()
    for row, cells, following in zip(rows, table[1:], followings, strict=False):
        verdict = str(row["verdict"])
        yield verdict, _line(cells, widths)
        notes = []
        for key, title in _OF_RUN.items():
            if row.get(key) and (key != "energy" or _is_unknown(row[key])) and (row.get("run"), key) not in shown:
                shown.add((row.get("run"), key))
                notes.append(("SKIP", f"{title}: {row[key]}"))
        notes.append(("SKIP", str(row.get("steady_part", ""))))
        if row.get("each_run"):
            values = [for_people(float(value)) for value in str(row["each_run"]).split(",")]
            notes.append(("", f"{len(values)} runs: {', '.join(values)} {row['unit']}"))
        is_last = row.get("test") not in explained and any(row.get(key) != following.get(key) for key in _ALIKE)
        if is_last:
            notes.append((verdict, str(row.get("reason", ""))))
            notes.append((verdict, f"cause: {row['cause']}" if row.get("cause") else ""))
        for colour, text in notes:
            yield from ((colour, f"    {line}") for line in _wrap(text, width - 4))
        if is_last and verdict in FAILING and row.get("run_record"):
            yield verdict, f"    run record: {shown_path(Path(str(row['run_record'])))}"
    yield from (("", line) for line in _places(rows, width))


def _places(rows: Sequence[Mapping[str, object]], width: int) -> Iterator[str]:
    """Yield the nodes of each run, unless all runs were on one node."""
    runs: dict[tuple[str, ...], dict[str, None]] = {}
    for row in rows:
        hosts = tuple(filter(None, str(row.get("hosts") or "").split(",")))
        if hosts and row.get("run"):
            runs.setdefault(hosts, {})[str(row["run"])] = None
    if len(runs) < 2 and all(len(hosts) < 2 for hosts in runs):
        return
    for hosts, names in runs.items():
        yield from _wrap(f"on {listed(hosts)}: {', '.join(names)}", width)


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    # Words stay whole, so that a path can be copied.
    plain = " ".join(text.split())
    return textwrap.wrap(plain, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _cell(row: Mapping[str, object], column: str) -> str:
    if column == "measured":
        value = row.get("value")
        return f"{for_people(value)} {row['unit']}" if isinstance(value, float | int) else "—"
    if column == "energy" and _is_unknown(row.get(column)):
        return "unknown"
    if column == "threshold":
        return bounds_for_people(str(row.get(column) or "—"), floor=row.get("floor"))
    return str(row.get(column, "—")) or "—"


def _is_unknown(energy: object) -> bool:
    return str(energy).startswith("unknown")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()


def render_health(rows: Sequence[Mapping[str, object]], screen: int) -> Iterator[tuple[str, str]]:
    """Yield (verdict, line), from the properties of the report of each test; `screen` is the terminal's width.

    A fleet may have thousands of tests, so a check has one line, and only results other than PASS are shown in detail;
    results that are the same for many nodes are shown once.
    """
    by_check: dict[str, list[Mapping[str, object]]] = {}
    for row in rows:
        by_check.setdefault(str(row["check"]), []).append(row)
    width = max(len(name) for name in [*by_check, "check"])
    yield "", f"{'check'.ljust(width)}  verdict  nodes  measured"
    for name, tests in by_check.items():
        count = Counter(str(test["verdict"]) for test in tests)
        worst = next(verdict for verdict in WORST_FIRST if count[verdict])
        of_each = ", ".join(f"{count[verdict]} {verdict}" for verdict in WORST_FIRST if count[verdict])
        nodes = of_each if len(count) > 1 else str(sum(int(str(test.get("nodes") or 0)) for test in tests))
        passing = [test for test in tests if test["verdict"] == "PASS"]
        bound = f"{NO_BOUND}; " if any(test.get("bound") == NO_BOUND for test in passing) else ""
        measured = f"{bound}{tests[0].get('measured', '') if len(tests) == 1 else ''}".removesuffix("; ")
        yield worst, f"{name.ljust(width)}  {worst.ljust(7)}  {nodes.ljust(5)}  {measured}".rstrip()
    everyone = {str(row["host"]) for row in rows if row.get("host")}
    bad: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == "FAIL" and row.get("host"):
            bad.setdefault(str(row["host"]), []).append(str(row["check"]))
    if bad and len(everyone) > 1:
        names = f"all {len(bad)}" if {*bad} == everyone else ""
        names = names or listed(f"{host} ({listed(checks)})" for host, checks in bad.items())
        yield from (("FAIL", line) for line in _wrap(f"bad nodes: {names}", screen))
    for verdict in WORST_FIRST[:-1]:
        of_verdict = sorted((row for row in rows if row["verdict"] == verdict), key=lambda row: not row.get("host"))
        reasons = [(row, str(row.get("reason", ""))) for row in of_verdict]
        yield from _details(verdict, verdict, reasons, everyone, screen)
    hints = [(row, str(row["hints"])) for row in rows if row["verdict"] == "PASS" and row.get("hints")]
    yield from _details("", "hint", hints, everyone, screen)


def _details(
    verdict: str, word: str, texts: Sequence[tuple[Mapping[str, object], str]], everyone: set[str], screen: int
) -> Iterator[tuple[str, str]]:
    """Yield each text once, with all checks and nodes that have it."""
    alike: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row, text in texts:
        host, plain = str(row.get("host") or ""), " ".join(text.split())
        plain = plain.replace(f"{host}: ", "", 1).replace(f"{host} ", "", 1) if host else plain
        checks, hosts = alike.setdefault(plain, ({}, {}))
        checks[str(row["check"])] = None
        hosts[host or "all nodes"] = None
    for plain, (checks, hosts) in alike.items():
        where = f"all {len(hosts)} nodes" if len(hosts) > 1 and set(hosts) == everyone else listed([*hosts])
        text = f"{word} {listed([*checks])} on {where}: {plain}"
        yield from ((verdict, line) for line in _wrap(text, screen, "    "))
