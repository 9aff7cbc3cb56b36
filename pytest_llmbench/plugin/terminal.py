"""What a person reads: what runs where before it does, and the verdicts after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.reporting.table import render

_MARKUP = {
    "PASS": {"green": True},
    "FAIL": {"red": True},
    "ERROR": {"red": True, "bold": True},
    "SKIP": {"yellow": True},
}


def header(bench: Bench, *, in_earnest: bool = True) -> list[str]:
    """Say what will run, on what, and, where it runs in earnest, where it is written."""
    settings = bench.settings
    nodes = f"{settings.nodes} nodes" if settings.nodes else "nodes as each recipe says"
    where = "this machine" if settings.cluster in {"local", "debug"} else nodes
    reports = f", reports in {bench.session.folder}" if in_earnest else ""
    name, what = settings.system.name, settings.system.description or "no description"
    return [
        f"llmbench: system {name} ({what}), cluster {settings.cluster}, {where}, scale {settings.scale}",
        f"llmbench: {len(bench.runs)} run{'s' if len(bench.runs) > 1 else ''}{reports}",
    ]


def verdict_table(reporter: pytest.TerminalReporter, rows: Sequence[Mapping[str, object]], bench: Bench) -> None:
    """Print every verdict with what was measured, and where the evidence is."""
    reporter.section("llmbench verdicts", sep="=")
    for verdict, line in render(rows):
        reporter.write_line(line, **_MARKUP.get(verdict, {}))
    reporter.write_line(f"records, scripts and logs: {bench.session.folder}")
