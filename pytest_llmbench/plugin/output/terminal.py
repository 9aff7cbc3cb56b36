"""Output for people: the plan before the runs, and the verdicts after."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_llmbench.core.quantity import counted, for_people
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.lending import unusable
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.plugin.verdict.requirements import ClauseVerdict
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.reporting.health import render_health
from pytest_llmbench.reporting.table import render
from pytest_llmbench.session.journal.earlier import Earlier, describe_dead_session

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
        where = f"logs in {settings.replay}"
    reports = f", reports in {bench.session.folder}" if runs_tests else ""
    name, what = settings.system.name, settings.system.description or "no description"
    runs, checks = len(bench.planned.runs), len(bench.planned.checks)
    planned = [counted(checks, "check")] if checks else []
    planned += [counted(runs, "run")] if runs or not checks else []
    gate = ", gate on" if bench.planned.gate else ""
    return [
        f"llmbench: system {name} ({what}), cluster {settings.cluster}, {where}, scale {settings.scale}",
        f"llmbench: {', then '.join(planned)}{gate}{reports}",
        *(_describe_resumed(bench, bench.earlier) if bench.earlier is not None else ()),
        *(_describe_dead(bench) if runs_tests and bench.earlier is None else ()),
        *([simulated(settings.simulate)] if settings.simulate is not None else []),
        *(f"llmbench: left out: {reason}" for reason in unusable()),
    ]


def _describe_resumed(bench: Bench, earlier: Earlier) -> Iterator[str]:
    kept, left, new = earlier.counts(bench.planned, bench.settings)
    looked_for = f", jobs of {left} looked for in Slurm" if bench.settings.runs_are_jobs else ""
    yield f"llmbench: resuming {bench.session.id}: {counted(kept, 'run')} kept{looked_for}, {new} to make"


def _describe_dead(bench: Bench) -> Iterator[str]:
    if bench.settings.replay is None and (line := describe_dead_session(bench.run_dir)) is not None:
        yield f"llmbench: {line}"


def simulated(fault: SimulatedFault) -> str:
    """The line that marks a session with a simulated fault, whose numbers are worthless as measurements."""
    return f"llmbench: SIMULATED FAULT {fault}: a rank of each run causes it; this session measures nothing"


def width(reporter: pytest.TerminalReporter) -> int:
    """Columns of the terminal; a narrower one wraps lines itself."""
    return max(60, reporter._tw.fullwidth)  # noqa: SLF001 - pytest offers no other way to the width


def add_reports(reporter: pytest.TerminalReporter, reports: Iterable[pytest.TestReport]) -> None:
    """Have pytest list these tests in its short summary and count them in its last line, as the XML file does."""
    for report in reports:
        category = "error" if report.when == "setup" else report.outcome
        reporter._add_stats(category, [report])  # noqa: SLF001 - `stats` alone leaves the last line green


def shown_as_failed(reporter: pytest.TerminalReporter) -> set[str]:
    """Node ids of the tests that pytest lists as failed, or as errors."""
    return {str(report.nodeid) for kind in ("failed", "error") for report in reporter.stats.get(kind, ())}


def health_table(reporter: pytest.TerminalReporter, rows: Sequence[Mapping[str, object]], bench: Bench) -> None:
    """Print how each check ended, and every unfit node with what to do about it."""
    reporter.section("llmbench health", sep="=")
    for verdict, line in render_health(rows, width(reporter)):
        reporter.write_line(line, **_MARKUP.get(verdict, {}))
    reporter.write_line(f"records and logs: {bench.session.folder / layout.FOLDERS['check']}")


def verdict_table(reporter: pytest.TerminalReporter, rows: Sequence[Mapping[str, object]], bench: Bench) -> None:
    """Print every verdict with what was measured, and where the evidence is."""
    reporter.section("llmbench verdicts", sep="=")
    for verdict, line in render(rows, width(reporter)):
        reporter.write_line(line, **_MARKUP.get(verdict, {}))
    reporter.write_line(f"records, scripts and logs: {bench.session.folder}")


def clauses(reporter: pytest.TerminalReporter, verdicts: Sequence[ClauseVerdict]) -> None:
    """Print how each required clause ended, and why it is INCOMPLETE."""
    reporter.section("llmbench requirements", sep="=")
    longest = max(len(ended.clause.name) for ended in verdicts)
    for ended in verdicts:
        markup = _MARKUP.get(str(ended.verdict), {})
        reporter.write_line(
            f"{ended.clause.name.ljust(longest)}  {ended.verdict}  {', '.join(ended.clause.tests)}", **markup
        )
        if ended.reason:
            reporter.write_line(f"    {ended.reason}", **markup)


def speed_lines(reporter: pytest.TerminalReporter, lines: Iterable[str], *, required: bool) -> None:
    """Print which runs lack a verdict on their speed, and what comes of it."""
    for line in lines:
        ends = f" (--llmbench-require-verdict: exit code {EXIT_CODE} if nothing else is wrong)" if required else ""
        reporter.write_line(f"{line}{ends}", yellow=True)


def early_lines(reporter: pytest.TerminalReporter, looks: Mapping[str, EarlyVerdict]) -> None:
    """Print by which of its steps each early run was judged, or why it ran whole; and what that saved."""
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
        reporter.write_line(f"report: {folder / layout.PAGE}")
    if report.lines:
        reporter.section(f"llmbench {report.name}", sep="=")
    for line in report.lines:
        reporter.write_line(line)
