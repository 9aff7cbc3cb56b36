"""Output for people: the plan before the runs, and the verdicts after."""

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from pytest_llmbench.core.paths import shown_path
from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.records import RecordedClause
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.lending import unusable
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.plugin.pytest_private import add_to_summary, width_of
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.reporting.table import render, render_health
from pytest_llmbench.session.forecast import contradictions
from pytest_llmbench.session.journal.earlier import describe_dead_session
from pytest_llmbench.session.record_store import RunSummary

# Columns; a terminal with fewer wraps lines itself.
_NARROWEST = 60
_MARKUP = {
    "PASS": {"green": True},
    "FAIL": {"red": True},
    "ERROR": {"red": True, "bold": True},
    "SKIP": {"yellow": True},
    "INCONCLUSIVE": {"yellow": True, "bold": True},
    "XFAIL": {"yellow": True},
    "INCOMPLETE": {"red": True, "bold": True},
}


def header(bench: Bench, *, runs_tests: bool = True) -> list[str]:
    """Print what will run, on which machine, and, unless it is only a plan, the folder of the records."""
    settings = bench.settings
    nodes = counted(settings.nodes, "node") if settings.nodes else "each recipe's nodes"
    where = "this machine" if settings.cluster in {"local", "debug"} else nodes
    if settings.replay is not None:
        how = ", judged AS RECORDED, by the recipes in its records" if settings.as_recorded else ""
        where = f"logs in {settings.replay}{how}"
    reports = f", reports in {shown_path(bench.session.folder)}" if runs_tests else ""
    name, what = settings.system.name, settings.system.description or "no description"
    runs, checks = len(bench.planned.runs), len(bench.planned.checks)
    planned = [counted(checks, "check")] if checks else []
    planned += [counted(runs, "run")] if runs or not checks else []
    gate = ", gate on" if bench.planned.gate else ""
    return [
        f"llmbench: system {name} ({what}), cluster {settings.cluster}, {where}, scale {settings.scale}",
        f"llmbench: {', then '.join(planned)}{gate}{reports}",
        *([f"llmbench: {earlier}"] if runs_tests and (earlier := _describe_earlier(bench)) else []),
        *([describe_fault(settings.simulate)] if settings.simulate is not None else []),
        *(f"llmbench: left out: {reason}" for reason in unusable()),
        *(f"llmbench: WARNING: {text}" for text in contradictions(settings.system)),
    ]


def _describe_earlier(bench: Bench) -> str | None:
    """Describe the session that `--resume` goes on with, or could go on with."""
    if bench.earlier is None:
        return describe_dead_session(bench.options.run_dir) if bench.settings.replay is None else None
    kept, left, new = bench.earlier.counts(bench.planned, bench.settings)
    looked_for = f", jobs of {left} looked for in Slurm" if bench.settings.runs_are_jobs else ""
    return f"resuming {bench.session.id}: {counted(kept, 'run')} kept{looked_for}, {new} to make"


def describe_fault(fault: SimulatedFault) -> str:
    """The line that marks a session with a simulated fault, whose numbers are worthless as measurements."""
    who = "a rank of each run causes it" if fault.step is not None else "all ranks of checks and runs have it"
    return f"llmbench: SIMULATED FAULT {fault}: {who}; this session measures nothing"


def add_reports(reporter: pytest.TerminalReporter, reports: Iterable[pytest.TestReport]) -> None:
    """Have pytest list these tests in its short summary and count them in its last line, as the XML file does."""
    for report in reports:
        category = "error" if report.when == "setup" else report.outcome
        add_to_summary(reporter, category, report)


def shown_as_failed(reporter: pytest.TerminalReporter) -> set[str]:
    """Node ids of the tests that pytest lists as failed, or as errors."""
    return {str(report.nodeid) for kind in ("failed", "error") for report in reporter.stats.get(kind, ())}


def explained_tests(reporter: pytest.TerminalReporter) -> set[str]:
    """Node ids of the tests whose failure pytest has printed with its reason, before it prints our tables."""
    shows = not reporter.no_summary and reporter.config.option.tbstyle != "no"
    return shown_as_failed(reporter) if shows else set()


def verdict_tables(
    reporter: pytest.TerminalReporter, rows: Sequence[Mapping[str, object]], folder: Path, explained: Container[object]
) -> None:
    """Print every verdict, on nodes and on runs, with what was measured and what to do, and where the evidence is.

    The reasons of the tests `explained` are on the terminal.
    """
    checked, trained = [row for row in rows if "check" in row], [row for row in rows if "check" not in row]
    for title, of_kind, draw, evidence in (
        ("health", checked, render_health, f"records and logs: {shown_path(folder / layout.FOLDERS['check'])}"),
        ("verdicts", trained, partial(render, explained=explained), f"records, scripts and logs: {shown_path(folder)}"),
    ):
        if of_kind:
            reporter.section(f"llmbench {title}", sep="=")
            for verdict, line in draw(of_kind, max(_NARROWEST, width_of(reporter))):
                reporter.write_line(line, **_MARKUP.get(verdict, {}))
            reporter.write_line(evidence)


def clauses(reporter: pytest.TerminalReporter, verdicts: Sequence[RecordedClause]) -> None:
    """Print how each required clause ended, with the reason of each that is INCOMPLETE."""
    if verdicts:
        reporter.section("llmbench requirements", sep="=")
    longest = max((len(clause.name) for clause in verdicts), default=0)
    for clause in verdicts:
        markup = _MARKUP.get(str(clause.verdict), {})
        reporter.write_line(f"{clause.name.ljust(longest)}  {clause.verdict}  {', '.join(clause.tests)}", **markup)
        if clause.reason:
            reporter.write_line(f"    {clause.reason}", **markup)


def speed_lines(reporter: pytest.TerminalReporter, lines: Iterable[str], *, required: bool) -> None:
    """Print which runs lack a verdict on their speed, and what comes of it."""
    for line in lines:
        ends = f" (--llmbench-require-verdict: exit code {EXIT_CODE} if nothing else is wrong)" if required else ""
        reporter.write_line(f"{line}{ends}", yellow=True)


def early_lines(reporter: pytest.TerminalReporter, made: Mapping[str, RunSummary]) -> None:
    """Print by which of its steps each early run was judged, or why it ran whole; and what that saved."""
    looks = {key: run.early for key, run in made.items() if run.early is not None and run.problem is None}
    for key, early in looks.items():
        reporter.write_line(f"early verdict of {key}: {early}")
    for unit in dict.fromkeys(early.unit for early in looks.values()):
        runs = [early for early in looks.values() if early.unit == unit]
        saved, spent = (
            sum(hours) for hours in zip(*((early.hours_saved, early.hours_spent) for early in runs), strict=True)
        )
        ended = sum(early.ended_early for early in runs)
        of = f"{ended} of {counted(len(runs), 'run')} ended early"
        reporter.write_line(f"{of}: {for_people(saved, 3)} {unit} saved, {for_people(spent, 3)} spent")


def report_lines(reporter: pytest.TerminalReporter, report: Reported, folder: Path) -> None:
    """Print the lines of a report, and where the page for people is."""
    if report.is_page:
        reporter.write_line(f"report: {shown_path(folder / layout.PAGE)}")
    if report.lines:
        reporter.section(f"llmbench {report.name}", sep="=")
    for line in report.lines:
        reporter.write_line(line)
