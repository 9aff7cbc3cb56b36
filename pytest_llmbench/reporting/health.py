"""The health table: a line per check, then a paragraph per unfit node."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.core.quantity import listed

_VERDICTS = ("FAIL", "ERROR", "SKIP", "PASS")
# Shown for a check that passes without a bound on its measured values.
NO_BOUND = "no bound"


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
        worst = next(verdict for verdict in _VERDICTS if count[verdict])
        of_each = ", ".join(f"{count[verdict]} {verdict}" for verdict in _VERDICTS if count[verdict])
        nodes = of_each if len(count) > 1 else str(sum(int(str(test.get("nodes") or 0)) for test in tests))
        passing = [test for test in tests if test["verdict"] == "PASS"]
        bound = f"{NO_BOUND}; " if any(test.get("bound") == NO_BOUND for test in passing) else ""
        measured = f"{bound}{tests[0].get('measured', '') if len(tests) == 1 else ''}".removesuffix("; ")
        yield worst, f"{name.ljust(width)}  {worst.ljust(7)}  {nodes.ljust(5)}  {measured}".rstrip()
    everyone = {str(row["host"]) for row in rows if row.get("host")}
    for verdict in _VERDICTS[:-1]:
        reasons = [(row, str(row.get("reason", ""))) for row in rows if row["verdict"] == verdict]
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
        lines = textwrap.wrap(text, screen, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
        yield from ((verdict, line) for line in lines)
