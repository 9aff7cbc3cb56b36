"""The results of a session: gathered as tests end, completed at its end, and handed to every report."""

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Property, RecordedClause, SessionVerdicts, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import history
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.missed import MissedEvents
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.conclusion import Conclusion, Overruled
from pytest_llmbench.plugin.output.junit import JUnit
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.provenance import judgements, suite_facts, suite_properties
from pytest_llmbench.plugin.output.reports import Reported, make_reports
from pytest_llmbench.plugin.verdict import outcome, speed
from pytest_llmbench.plugin.verdict.declared import known_facts
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups
from pytest_llmbench.plugin.verdict.requirements import ClauseVerdict, Requirements
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.plugin.verdict.unfinished import Reports, report_of, report_of_verdict, verdict_of_unfinished
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.reporting.ci.verdict import SessionVerdict
from pytest_llmbench.session.record_store import RecordStore


class Results:
    """The verdicts of a session's tests, groups and clauses.

    Attributes:
        store: has the records; None until runs are started.
        runs_tests: whether tests are run, rather than only collected or planned.
        has_junit: whether the XML of this process is on disk.
    """

    def __init__(
        self, config: pytest.Config, bench: Bench, progress: LiveLine, reports: Reports, requirements: Requirements
    ) -> None:
        self.store: RecordStore | None = None
        self.runs_tests = self._all_judged = self.has_junit = False
        self._config = config
        self._bench = bench
        self._progress = progress
        self._junit = JUnit(config, bench.session.folder / layout.JUNIT)
        self._rows: list[Mapping[str, Any]] = []
        self._waiting: set[str] = set()
        self._judged_runs = JudgedRuns()
        self._unreported: list[pytest.TestReport] = []
        self._made: list[Reported] = []
        self._suite_facts: Mapping[str, str] = {}
        self._broken = outcome.BrokenRuns()
        self._unjudged: Mapping[str, Sequence[str]] = {}
        self._reports = reports
        self._requirements = requirements
        self._clauses: list[ClauseVerdict] = []
        self._groups = ComparedGroups(rows=(), not_compared={})
        self._overruled = Overruled()
        self._conclusion = Conclusion(config, bench)
        self._is_judged = self._is_refused = False

    def catch_up(self, missed: MissedEvents) -> None:
        """Take what happened before the session began into the report."""
        self._junit.catch_up(missed)

    def expect(self) -> None:
        """Wait for the verdict of every planned test, and keep a report for the case that pytest is killed.

        Called in the thread of a controller, while tests of others may be over already.
        """
        tests = {test.test: test for test in self._bench.planned.tests}
        self._waiting = {*tests}
        self._judged_runs = JudgedRuns(self._bench.planned.tests)

        def tell(reason: str) -> None:  # it is tried again, at the latest at the end, and the verdicts are kept
            if self.store is not None:
                self.store.notes.append(f"a report cannot be written: {reason}")

        try:
            self._conclusion.withdraw()
        except OSError as error:
            tell(str(error))
        self._junit.follow(
            [*tests], lambda test: known_facts(tests[test], self._bench, self.store), self._conclusion.records, tell
        )

    def refuse(self, reason: str) -> None:
        """Note the reason why the session was refused."""
        self._reports.note_end(reason)
        self._junit.discard()
        self._is_refused = True

    def take(self, report: pytest.TestReport) -> None:
        """Gather the verdict of a test that is over, and report a broken run once."""
        self._overruled.correct(report, lambda: self._conclusion.warned)
        self._broken.shorten(report)
        properties = outcome.verdict_of(report)
        if properties is not None:
            row = {**properties, "test": report.nodeid}
            self._rows.append(row)
            if self.store is not None:
                self.store.verdicts[report.nodeid] = Verdict(str(properties["verdict"]))
                self.store.note("judged", sync=False, name=report.nodeid, verdict=str(properties["verdict"]))
            self._waiting.discard(report.nodeid)
            if self.store is not None:
                self._judged_runs.take(row, self.store)

    @property
    def complete(self) -> bool:
        """Whether every planned test has its verdict."""
        return not self._waiting

    def finish(self, session: pytest.Session) -> None:
        """Complete the verdicts, and hand them to the other reporters."""
        self._junit.stop()
        if self.store is not None:
            self.store.runs.check_files()
        if self.runs_tests and self._bench.planned.tests:
            self._finish_tests(session)
            self._judge_groups(session)
            self._compare_with_history(session)
            self._suite_facts = suite_facts(
                self._bench, self._conclusion.records, unfit=self.store.unfit if self.store is not None else {},
                unjudged=self._unjudged, groups=self._groups, not_tested=self._not_tested,
            )  # fmt: skip
            self._junit.describe_session(self._suite_facts)
        elif not (self.runs_tests and self._requirements.clauses):
            self._junit.discard()
        if self.runs_tests:
            self._judge_clauses(session)
        self._conclude(session)
        if self.store is not None:
            self.store.add_judgements(judgements(self._rows))
            if self._rows or self._clauses:
                self.store.write(self._bench.session.folder / layout.VERDICTS, self._verdicts())
            self._make_reports(self.store)
            self._progress.take(self.store.notes)
            self._junit.describe_session(suite_properties(self.store.runs.glances))
        self._junit.complete(self._conclusion.records)

    def _conclude(self, session: pytest.Session) -> None:
        """Hold the exit code against the verdicts, in a session that has any to give."""
        has_any = bool(self._bench.planned.tests or self._requirements.clauses)
        self._is_judged = self.runs_tests and has_any and not self._is_refused
        self._conclusion.rows, self._conclusion.clauses = self._rows, self._clauses
        self._conclusion.unjudged, self._conclusion.overruled = self._unjudged, [*self._overruled.tests]
        if self._is_judged:
            self._conclusion.settle(session)

    def end(self, session: pytest.Session) -> None:
        """Write the verdict on the session, after all other plugins have set their exit code, then note the end.

        The end is the last thing written: a session that is killed before lacks it, and `--resume` completes it.
        """
        if self.unwritten:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if not self._is_judged:
            return
        try:
            before = session.exitstatus
            self._conclusion.settle(session)
            if session.exitstatus != before:
                self._progress.note(f"exit code {before} becomes {int(session.exitstatus)}: tests failed")
            self._conclusion.notes = self._notes
            self._conclusion.write(int(session.exitstatus))
        except OSError as error:
            self._progress.note(f"the verdict on the session could not be written: {error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        try:
            self._conclusion.enlist()
        except OSError as error:  # the evidence is complete, and the next session lists this one
            self._progress.note(f"the list of sessions could not be written: {error}")
        if self.store is not None and self._all_judged and self.has_junit and not self.unwritten:
            self.store.note_end(self._bench.planned)
            self._progress.take(self.store.notes)

    @property
    def word(self) -> str:
        """The verdict on the session in one word, as `verdict.json` has it; `broken` where that is missing."""
        try:
            return SessionVerdict.read(self._bench.session.folder / layout.VERDICT).verdict
        except ConfigError:
            return "broken"

    @property
    def unwritten(self) -> bool:
        """Whether writing a report or evidence failed, or evidence was changed afterwards."""
        lacks = self.store is not None and bool(self.store.unwritten or self.store.lost)
        return lacks or any(report.failure for report in self._made)

    @property
    def _notes(self) -> list[str]:
        """Sentences about the session for its reports."""
        lost = self.store.lost.values() if self.store is not None else ()
        return [*speed.lines(self._unjudged), *self._groups.lines, *lost]

    def summarise(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdict table, and add the tests that are otherwise unreported to pytest's own list of errors."""
        terminal.add_reports(terminalreporter, self._unreported)
        if checked := [row for row in self._rows if "check" in row]:
            terminal.health_table(terminalreporter, checked, self._bench)
        if trained := [row for row in self._rows if "check" not in row]:
            terminal.verdict_table(terminalreporter, trained, self._bench)
        self._summarise_session(terminalreporter)

    def _summarise_session(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what is true of the session as a whole."""
        if self._rows and (fault := self._bench.settings.simulate) is not None:  # with rows, the settings are legal
            terminalreporter.write_line(terminal.simulated(fault), red=True, bold=True)
        runs = self.store.runs.glances if self.store is not None else {}
        if early := {key: run.early for key, run in runs.items() if run.early is not None and run.problem is None}:
            terminal.early_lines(terminalreporter, early)
        if self._clauses:
            terminal.clauses(terminalreporter, self._clauses)
        if self._unjudged:
            terminal.speed_lines(terminalreporter, speed.lines(self._unjudged), required=self._bench.requires_verdict)
        for line in self._groups.lines:
            terminalreporter.write_line(line, yellow=True)
        if self.store is not None and self._not_tested:
            terminalreporter.write_line(f"NOT TESTED, too few nodes for another run: {self._not_tested}", red=True)
        for report in self._made:
            terminal.report_lines(terminalreporter, report, self._bench.session.folder)
        if self._is_judged:
            self._summarise_conclusion(terminalreporter)

    def _summarise_conclusion(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print which failures came as something else, and what GitHub Actions is to show."""
        self._conclusion.compare_with(terminal.shown_as_failed(terminalreporter))
        for line in self._conclusion.lines():
            terminalreporter.write_line(line, red=True, bold=True)
        for line in self._conclusion.annotations():
            terminalreporter.write_line(line)

    @contextlib.contextmanager
    def junit_written(self) -> Iterator[None]:
        """Have the reports of tests on disk after this, in which pytest's writer is called.

        Raises:
            OSError: writing one failed.
        """
        with self._junit.written():
            yield
        self._junit.keep()
        self.has_junit = True

    def _finish_tests(self, session: pytest.Session) -> None:
        """Give every unfinished test its verdict, and fail the session if there is one."""
        tests = list(self._reports.unfinished(self._bench.planned.tests, session))
        self._all_judged = not tests
        for test in tests:
            properties = verdict_of_unfinished(test, known_facts(test.test, self._bench, self.store))
            self._rows.append({**properties, "test": test.test.test})
            if test.crash or test.properties is not None:
                self._junit.close(test.test.test, properties, error=test.lacks_number)
            else:
                self._junit.add_error(test.test.test, properties)
                self._unreported.append(report_of(test.test.test, properties, "setup", "failed"))
        if tests and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.store is not None:
            self._unjudged = speed.not_judged(self._bench.planned.runs, self._rows, self.store.runs.glances)
        if self._unjudged and self._bench.requires_verdict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = speed.EXIT_CODE

    def _judge_groups(self, session: pytest.Session) -> None:
        """Compare groups of nodes with each other: one that is too slow, or may be, fails the session."""
        if self.store is None:
            return
        self._groups = compare_groups(self._bench.planned.runs, self.store.runs, self._bench.options.group_tolerance)
        self._take_verdicts(self._groups.rows, session)

    def _compare_with_history(self, session: pytest.Session) -> None:
        """Hold the runs against earlier ones, if the user asks for it: one that became slower fails the session."""
        wanted, place = self._bench.options.compare_to, self._bench.options.history
        if self.store is None or wanted is None or place is None:
            return
        runs, records = self._bench.planned.runs, self.store.runs
        try:
            rows = [*history.compare_with_history(place, self._bench.session.id, runs, records, wanted)]
        except ConfigError as error:
            self._made.append(Reported(name="comparison", failure=f"nothing was compared with the history: {error}"))
            return
        self._take_verdicts(rows, session)

    def _take_verdicts(self, rows: Iterable[Mapping[str, Any]], session: pytest.Session) -> None:
        """Add verdicts without a test to the table, the report and the requirements."""
        for row in rows:
            self._rows.append(row)
            properties = {name: value for name, value in row.items() if name != "test"}
            warned = self._bench.options.inconclusive == "warn"
            report = report_of_verdict(row["test"], properties, warned=warned)
            self._requirements.pytest_runtest_logreport(report)
            self._junit.add_verdict(report)
            self._unreported.append(report)
            if report.failed and session.exitstatus in {pytest.ExitCode.OK, EXIT_CODE}:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge_clauses(self, session: pytest.Session) -> None:
        """Judge the required clauses: one that is INCOMPLETE fails the session."""
        self._clauses = self._requirements.verdicts()
        self._junit.describe_session({f"clause[{ended.clause.name}]": str(ended.verdict) for ended in self._clauses})
        incomplete = [ended for ended in self._clauses if ended.verdict is Verdict.INCOMPLETE]
        for ended in incomplete:
            name = ended.clause.name
            facts = {"clause": name, "verdict": str(ended.verdict), "reason": ended.reason}
            self._junit.add_error(f"requirements::{name}", facts)
        if incomplete and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, EXIT_CODE}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _verdicts(self) -> SessionVerdicts:
        """All verdicts, for reports that are made from the session's folder."""
        clauses = [
            RecordedClause(name=ended.clause.name, tests=ended.clause.tests, verdict=ended.verdict, reason=ended.reason)
            for ended in self._clauses
        ]
        return SessionVerdicts(
            session=self._bench.session.id,
            facts=self._suite_facts,
            tests=tuple({name: _plain(value) for name, value in row.items()} for row in self._rows),
            clauses=tuple(clauses),
            notes=tuple(self._notes),
        )

    def _make_reports(self, store: RecordStore) -> None:
        session, planned = self._bench.session, self._bench.planned
        finished = FinishedSession(
            id=session.id, folder=session.folder, planned=planned, runs=store.runs, checks=store.checks
        )
        self._made += make_reports(finished, self._config)
        if (kept := history.keep(self._config, session, store)) is not None:
            self._made.append(kept)
        store.notes.extend(report.failure for report in self._made if report.failure is not None)

    @property
    def _not_tested(self) -> str:
        """The nodes of the session that were left without a run, by name where every run had nodes of its own."""
        if self.store is not None and self.store.checks:
            return ""  # checks looked at every node
        left, settings = self.store.left_over if self.store is not None else (), self._bench.settings
        return ", ".join(left) or (f"{settings.left_over} of {settings.nodes}" if settings.left_over else "")


class SafeReports:
    """Innermost around the report writers, so that the terminal's summary comes also when the disk is full."""

    def __init__(self, results: Results, progress: LiveLine) -> None:
        self._results = results
        self._progress = progress

    @pytest.hookimpl(trylast=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Write the reports; if one fails, note that and fail the session."""
        try:
            with self._results.junit_written():
                result = yield
        except OSError as error:
            self._progress.note(f"a report could not be written: {error}; the verdicts are below")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return None
        return result


def _plain(value: object) -> Property:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


class JudgedRuns:
    """Waits for the last verdict on each run."""

    def __init__(self, tests: Iterable[Declared] = ()) -> None:
        """Wait for the verdicts of tests."""
        self._waiting: dict[str, set[str]] = {}
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for test in tests:
            if test.run is not None:
                self._waiting.setdefault(test.run, set()).add(test.test)

    def take(self, row: Mapping[str, Any], store: RecordStore) -> None:
        """Take the properties of a verdict."""
        series = str(row.get("run"))
        if series not in self._waiting:
            return
        self._rows.setdefault(series, []).append(row)
        self._waiting[series].discard(row["test"])
        if not self._waiting[series]:
            del self._waiting[series]
            store.add_judgements(judgements(self._rows.pop(series)))
            store.let_go(series)
