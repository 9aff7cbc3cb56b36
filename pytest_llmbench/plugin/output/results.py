"""The results of a session: gathered as tests end, completed at its end, and handed to every report."""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.core.record.records import Judgement, Verdict
from pytest_llmbench.core.record.verdicts import ClauseTold, Property, SessionVerdicts
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.junit import JUnit, suite_properties
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.reports import Reported, make_reports
from pytest_llmbench.plugin.verdict import outcome, speed
from pytest_llmbench.plugin.verdict.declared import facts
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups
from pytest_llmbench.plugin.verdict.requirements import ClauseVerdict, Requirements
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.plugin.verdict.unfinished import Reports, report_of, report_of_verdict, verdict_of_unfinished
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.session.keeper import Keeper


class Results:
    """The verdicts of a session's tests, groups and clauses.

    Attributes:
        keeper: has the records; None where nothing was started.
        in_earnest: whether tests are run, and not only looked at.
    """

    def __init__(
        self, config: pytest.Config, bench: Bench, progress: LiveLine, reports: Reports, requirements: Requirements
    ) -> None:
        self.keeper: Keeper | None = None
        self.in_earnest = self._all_judged = False
        self._config = config
        self._bench = bench
        self._progress = progress
        self._junit = JUnit(config, bench.session.folder / layout.JUNIT)
        self._rows: list[Mapping[str, Any]] = []
        self._waiting: set[str] = set()
        self._unreported: list[pytest.TestReport] = []
        self._made: list[Reported] = []
        self._broken = outcome.BrokenRuns()
        self._unjudged: Mapping[str, Sequence[str]] = {}
        self._reports = reports
        self._requirements = requirements
        self._clauses: list[ClauseVerdict] = []
        self._groups = ComparedGroups(rows=(), not_compared={})

    def expect(self) -> None:
        """Wait for the verdict of every planned test, and leave a report for the case that pytest is killed."""
        tests = self._bench.planned.tests
        self._waiting = {test.test for test in tests}
        killed = {"verdict": str(Verdict.ERROR), "reason": "pytest was killed before it could report this test"}
        try:
            self._junit.expect({test.test: {**facts(test, self._bench), **killed} for test in tests})
        except OSError as error:  # it is tried again at the end, and costs no verdict
            self._progress.note(f"a report cannot be written: {error}")

    def refuse(self, why: str) -> None:
        """Note that the session cannot begin."""
        self._reports.note_end(why)
        self._junit.discard()

    def take(self, report: pytest.TestReport) -> None:
        """Gather the verdict of a test that is over, and tell a broken run once."""
        self._broken.shorten(report)
        properties = outcome.verdict_of(report)
        if properties is not None:
            self._rows.append({**properties, "test": report.nodeid})
            if self.keeper is not None:
                self.keeper.note("judged", sync=False, name=report.nodeid, verdict=str(properties["verdict"]))
            self._waiting.discard(report.nodeid)

    @property
    def complete(self) -> bool:
        """Whether no test waits any more."""
        return not self._waiting

    def finish(self, session: pytest.Session) -> None:
        """Complete the verdicts, and hand them to the other reporters."""
        if self.in_earnest and self._bench.planned.tests:
            self._finish_tests(session)
            self._judge_groups(session)
            self._junit.describe_session(self._facts())
        elif not (self.in_earnest and self._requirements.clauses):
            self._junit.discard()
        if self.in_earnest:
            self._judge_clauses(session)
        if self.keeper is not None:
            self.keeper.add_judgements(_judgements(self._rows))
            if self._all_judged:
                self.keeper.note_end(self._bench.planned)
            if self._rows or self._clauses:
                self.keeper.write(self._bench.session.folder / layout.VERDICTS, self._verdicts())
            self._make_reports(self.keeper)
            self._progress.take(self.keeper.notes)
            self._junit.describe_session(suite_properties(self.keeper.runs))

    @property
    def unwritten(self) -> bool:
        """Whether a report or evidence could not be written."""
        return any(report.failure for report in self._made) or bool(self.keeper is not None and self.keeper.unwritten)

    def summarise(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdict table, and leave the tests that nothing else reports to pytest's own list of errors."""
        terminal.add_reports(terminalreporter, self._unreported)
        if checked := [row for row in self._rows if "check" in row]:
            terminal.health_table(terminalreporter, checked, self._bench)
        if trained := [row for row in self._rows if "check" not in row]:
            terminal.verdict_table(terminalreporter, trained, self._bench)
        if self._rows and (fault := self._bench.settings.simulate) is not None:  # settings that are wrong have none
            terminalreporter.write_line(terminal.simulated(fault), red=True, bold=True)
        runs = self.keeper.runs if self.keeper is not None else {}
        if early := {key: run.early for key, run in runs.items() if run.early is not None and run.problem is None}:
            terminal.early_lines(terminalreporter, early)
        if self._clauses:
            terminal.clauses(terminalreporter, self._clauses)
        if self._unjudged:
            terminal.speed_lines(terminalreporter, speed.lines(self._unjudged), required=self._bench.requires_verdict)
        for line in self._groups.lines:
            terminalreporter.write_line(line, yellow=True)
        for report in self._made:
            terminal.report_lines(terminalreporter, report, self._bench.session.folder)
        if self.keeper is not None and self._not_tested:
            terminalreporter.write_line(f"NOT TESTED, too few nodes for another run: {self._not_tested}", red=True)

    def copy_junit(self) -> None:
        """Keep the report next to the records."""
        self._junit.copy()

    def _finish_tests(self, session: pytest.Session) -> None:
        """Give every declared test that has no verdict its one, and see that the session does not end well with it."""
        tests = list(self._reports.unfinished(self._bench.planned.tests, session))
        self._all_judged = not tests
        for test in tests:
            properties = verdict_of_unfinished(test, facts(test.test, self._bench, self.keeper))
            self._rows.append({**properties, "test": test.test.test})
            if test.crash or test.told is not None:
                self._junit.close(test.test.test, properties)
            else:
                self._junit.add_error(test.test.test, properties)
                self._unreported.append(report_of(test.test.test, properties, "setup", "failed"))
        if tests and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.keeper is not None:
            self._unjudged = speed.not_judged(self._bench.planned.runs, self._rows, self.keeper.runs)
        if self._unjudged and self._bench.requires_verdict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = speed.EXIT_CODE

    def _judge_groups(self, session: pytest.Session) -> None:
        """Compare groups of nodes with each other: one that is too slow, or may be, fails the session."""
        if self.keeper is None:
            return
        tolerance = options.value(self._config, "group-tolerance")
        self._groups = compare_groups(self._bench.planned.runs, self.keeper.runs, tolerance)
        for row in self._groups.rows:
            self._rows.append(row)
            properties = {name: value for name, value in row.items() if name != "test"}
            warned = options.value(self._config, "inconclusive") == "warn"
            report = report_of_verdict(row["test"], properties, warned=warned)
            self._requirements.pytest_runtest_logreport(report)
            self._junit.add_verdict(report)
            self._unreported.append(report)
            if report.failed and session.exitstatus in {pytest.ExitCode.OK, EXIT_CODE}:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge_clauses(self, session: pytest.Session) -> None:
        """Hold what is required against what was judged: a clause that is INCOMPLETE fails the session."""
        self._clauses = self._requirements.verdicts()
        self._junit.describe_session({f"clause[{told.clause.name}]": str(told.verdict) for told in self._clauses})
        incomplete = [told for told in self._clauses if told.verdict is Verdict.INCOMPLETE]
        for told in incomplete:
            name = told.clause.name
            facts = {"clause": name, "verdict": str(told.verdict), "reason": told.reason}
            self._junit.add_error(f"requirements::{name}", facts)
        if incomplete and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, EXIT_CODE}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _verdicts(self) -> SessionVerdicts:
        """All of them, for reports that are made from the session's folder."""
        told = [
            ClauseTold(name=each.clause.name, tests=each.clause.tests, verdict=each.verdict, reason=each.reason)
            for each in self._clauses
        ]
        return SessionVerdicts(
            session=self._bench.session.id,
            facts=self._facts(),
            tests=tuple({name: _plain(value) for name, value in row.items()} for row in self._rows),
            clauses=tuple(told),
            notes=(*speed.lines(self._unjudged), *self._groups.lines),
        )

    def _make_reports(self, keeper: Keeper) -> None:
        session, planned = self._bench.session, self._bench.planned
        finished = FinishedSession(
            id=session.id, folder=session.folder, planned=planned, runs=keeper.runs, checks=keeper.checks
        )
        self._made = make_reports(finished, self._config)
        keeper.notes.extend(report.failure for report in self._made if report.failure is not None)

    @property
    def _not_tested(self) -> str:
        """The nodes of the session that no run had, by name where every run had its own of them."""
        if self.keeper is not None and self.keeper.checks:
            return ""  # checks looked at every node
        left, settings = self.keeper.left_over if self.keeper is not None else (), self._bench.settings
        return ", ".join(left) or (f"{settings.left_over} of {settings.nodes}" if settings.left_over else "")

    def _facts(self) -> dict[str, str]:
        settings, session = self._bench.settings, self._bench.session
        unfit = self.keeper.unfit if self.keeper is not None else {}
        return {
            "llmbench_version": __version__,  #: suite property llmbench_version: version of this package
            #: suite property llmbench_session: id of the session; the name of its folder
            "llmbench_session": session.id,
            "system": settings.system.name,  #: suite property system: system
            "cluster": settings.cluster,  #: suite property cluster: `slurm`, `local`, `debug` or `replay`
            "allocation": settings.allocation,  #: suite property allocation: `session` or `run`
            "scale": settings.scale,  #: suite property scale: `full` or `smoke`
            "reports": str(session.folder),  #: suite property reports: the session's folder
            #: suite property nodes_unfit: nodes that must not train, each with the check and why; absent where there
            #:  are none, and without checks
            **({"nodes_unfit": "; ".join(f"{h}: {why}" for h, why in unfit.items())} if unfit else {}),
            #: suite property speed_not_judged: runs without a verdict on their [speed](#verdicts), separated by commas;
            #:  absent where there are none
            **({"speed_not_judged": _names(self._unjudged.values())} if self._unjudged else {}),
            #: suite property groups_not_compared: groups of nodes that were not [compared](#groups-of-nodes), and why;
            #:  absent where there are none
            **({"groups_not_compared": "; ".join(self._groups.lines)} if self._groups.not_compared else {}),
            #: suite property nodes_not_tested: nodes that no run had, being too few for a group; absent where there are
            #:  none
            **({"nodes_not_tested": self._not_tested} if self._not_tested else {}),
        }


class SafeReports:
    """Innermost around the report writers: a full disk costs a file, not the terminal's summary."""

    def __init__(self, results: Results, progress: LiveLine) -> None:
        self._results = results
        self._progress = progress

    @pytest.hookimpl(trylast=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Say which report could not be written, and fail the session for it."""
        try:
            result = yield
            self._results.copy_junit()
        except OSError as error:
            self._progress.note(f"a report could not be written: {error}; the verdicts are below")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return None
        return result


def _plain(value: object) -> Property:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _names(groups: Iterable[Sequence[str]]) -> str:
    return ", ".join(name for group in groups for name in group)


def _judgements(rows: list[Mapping[str, Any]]) -> dict[tuple[str, str], list[Judgement]]:
    found: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
    for row in rows:
        about = next((word for word in ("run", "check") if word in row), None)
        if about is None:
            continue  # it never got as far as a run
        value = row.get("value")
        judgement = Judgement(
            test=str(row["test"]),
            verdict=Verdict(str(row["verdict"])),
            measured=row.get("measured") if value is None else f"{value!r} {row['unit']}",
            **{name: row.get(name) for name in ("statistic", "threshold", "reference", "reason", "cause")},
        )
        for name in str(row.get("runs") or row[about]).split(","):
            found[about, name].append(judgement)
    return found
