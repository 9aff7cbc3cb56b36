"""The results of a session: gathered as tests end, completed at its end, and handed to every report."""

from collections.abc import Generator, Mapping
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Judgement, Property, SessionVerdicts, Verdict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import history
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.conclusion import Conclusion
from pytest_llmbench.plugin.output.junit import END, JUnit, ReportOutcome, report_of
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.provenance import judgements, suite_facts, suite_properties
from pytest_llmbench.plugin.output.reports import Reported, make_reports
from pytest_llmbench.plugin.verdict import outcome, speed
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups
from pytest_llmbench.plugin.verdict.requirements import Requirements
from pytest_llmbench.plugin.verdict.unfinished import Reports
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.session.folder import Records
from pytest_llmbench.session.record_store import RecordStore

_AS_RECORDED = "judged as recorded: the recipes in the records decided what had to run, not those of this folder"


class Results:
    """The verdicts of a session's tests, groups and clauses.

    Attributes:
        store: has the records; None until runs are started.
        runs_tests: whether tests are run, rather than only collected or planned.
    """

    def __init__(
        self,
        config: pytest.Config,
        bench: Bench,
        progress: LiveLine,
        junit: JUnit,
        reports: Reports,
        requirements: Requirements,
    ) -> None:
        self.store: RecordStore | None = None
        self.runs_tests = False
        self._config = config
        self._bench = bench
        self._progress = progress
        self._junit = junit
        self._reports = reports
        self._requirements = requirements
        self._conclusion = Conclusion(config, bench)
        self._broken = outcome.BrokenRuns()
        self._groups = ComparedGroups(rows=(), not_compared={})
        self._waiting: dict[str, set[str]] = {}
        self._unreported: list[pytest.TestReport] = []
        self._made: list[Reported] = []
        self._suite_facts: Mapping[str, str] = {}
        self._all_judged = self._has_junit = self._is_judged = self._is_refused = False

    def expect(self) -> None:
        """Wait for the verdict of every planned test, and keep a report for the case that pytest is killed.

        Called in the thread of a controller, while tests of others may be over already.
        """
        tests = {test.test: test for test in self._bench.planned.tests}
        for test in tests.values():
            self._waiting.setdefault(test.run or "", set()).add(test.test)

        def tell(reason: str) -> None:  # it is tried again, at the latest at the end, and the verdicts are kept
            if self.store is not None:
                self.store.notes.append(f"a report cannot be written: {reason}")

        def facts(test: str) -> Mapping[str, Any]:
            known = {} if test == END else outcome.known_facts(tests[test], self._bench, self.store)
            what = "the session" if test == END else "this test"
            reason = f"no verdict yet: pytest still runs, or was killed before it could report {what}"
            return {**known, "verdict": str(Verdict.ERROR), "reason": reason}

        try:
            self._conclusion.withdraw()
        except OSError as error:
            tell(str(error))
        self._junit.follow([*tests], facts, self._conclusion.records, tell)

    def refuse(self, reason: str) -> None:
        """Note the reason why the session was refused."""
        self._reports.note_end(reason)
        self._junit.discard()
        self._is_refused = True

    def take(self, report: pytest.TestReport) -> None:
        """Gather the verdict of a test that is over, and report a broken run once."""
        self._conclusion.correct(report)
        self._broken.shorten(report)
        properties = dict(report.user_properties)
        if report.when != "teardown" or "verdict" not in properties:
            return
        self._conclusion.add_row(report.nodeid, properties)
        if self.store is None:
            return
        verdict, series = str(properties["verdict"]), str(properties.get("run", ""))
        self.store.verdicts[report.nodeid] = Verdict(verdict)
        self.store.note("judged", sync=False, name=report.nodeid, verdict=verdict)
        waiting = self._waiting.get(series, set())
        waiting.discard(report.nodeid)
        if not waiting and self._waiting.pop(series, None) is not None and series:  # the last verdict on a run
            self.store.add_judgements(self._judgements(series))
            self.store.let_go(series)

    def _judgements(self, series: str | None = None) -> dict[tuple[str, str], list[Judgement]]:
        return judgements(row for row in self._conclusion.rows if series in {None, row.get("run")})

    @property
    def complete(self) -> bool:
        """True if every planned test has its verdict."""
        return not self._waiting

    def finish(self, session: pytest.Session) -> None:
        """Complete the verdicts, and hand them to the other reporters."""
        self._junit.stop()
        self._conclusion.interrupted = self._reports.interrupted
        tests, required = self._bench.planned.tests, self._requirements.clauses
        if self.store is not None:
            self.store.runs.check_files()
        if self.runs_tests and tests:
            self._finish_tests(session)
            if self.store is not None:
                self._compare(self.store)
            self._suite_facts = suite_facts(
                self._bench, self._conclusion.records, unfit=self.store.unfit if self.store is not None else {},
                unjudged=self._conclusion.unjudged, groups=self._groups, not_tested=self._not_tested,
                interrupted=self._conclusion.interrupted,
            )  # fmt: skip
            self._junit.describe_session(self._suite_facts)
        elif not (self.runs_tests and required):
            self._junit.discard()
        if self.runs_tests:
            self._judge_clauses()
        self._is_judged = self.runs_tests and bool(tests or required) and not self._is_refused
        if self._is_judged:
            self._conclusion.settle(session)
        if self.store is not None:
            self.store.add_judgements(self._judgements())
            self._write_verdicts(self.store)
            self._make_reports(self.store)
            self._progress.take(self.store.notes)
            self._junit.describe_session(suite_properties(self.store.runs.summaries))
        self._junit.complete(self._conclusion.records)

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
                self._progress.note(f"exit code {before} becomes {int(session.exitstatus)} by the verdicts")
            self._conclusion.write(int(session.exitstatus), self._notes)
        except OSError as error:
            self._progress.note(f"the verdict on the session could not be written: {error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        if self.store is not None and self._all_judged and self._has_junit and not self.unwritten:
            self.store.note_end(self._bench.planned)
            self._progress.take(self.store.notes)

    @property
    def word(self) -> str:
        """The verdict on the session in one word, as `verdict.json` has it; `broken` where that is missing."""
        return self._conclusion.word

    @property
    def unwritten(self) -> bool:
        """True if writing a report or evidence failed, or evidence was changed afterwards."""
        lacks = self.store is not None and bool(self.store.unwritten or self.store.lost)
        return lacks or any(report.failure for report in self._made)

    @property
    def _notes(self) -> list[str]:
        lost = self.store.lost.values() if self.store is not None else ()
        replay = self._bench.options.replay
        law = [_AS_RECORDED] if replay is not None and replay.as_recorded else []
        return [*speed.describe_reasons(self._conclusion.unjudged), *self._groups.lines, *lost, *law]

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """Print the verdict table, and add the tests that are otherwise unreported to pytest's own list of errors."""
        rows, bench = self._conclusion.rows, self._bench
        explained = terminal.explained_tests(reporter)
        terminal.add_reports(reporter, self._unreported)
        terminal.verdict_tables(reporter, rows, bench.session.folder, explained)
        if rows and bench.settings.simulate is not None:  # with rows, the settings are legal
            reporter.write_line(terminal.describe_fault(bench.settings.simulate), red=True, bold=True)
        self._summarise_session(reporter)
        if self._is_judged:
            self._conclusion.compare_with(terminal.shown_as_failed(reporter))
            for line in self._conclusion.lines():
                reporter.write_line(line, red=True, bold=True)
            for line in self._conclusion.annotations():
                reporter.write_line(line)

    def _summarise_session(self, reporter: pytest.TerminalReporter) -> None:
        if self.store is not None:
            terminal.early_lines(reporter, self.store.runs.summaries)
        terminal.clauses(reporter, self._conclusion.clauses)
        if unjudged := self._conclusion.unjudged:
            terminal.speed_lines(reporter, speed.describe_reasons(unjudged), required=self._bench.requires_verdict)
        for line in self._groups.lines:
            reporter.write_line(line, yellow=True)
        if self.store is not None and self._not_tested:
            reporter.write_line(f"NOT TESTED, too few nodes for another run: {self._not_tested}", red=True)
        for report in self._made:
            terminal.report_lines(reporter, report, self._bench.session.folder)

    @pytest.hookimpl(trylast=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Have the reports written by pytest's writer, which is called within; an error fails the session.

        The terminal's summary is printed also when the disk is full.
        """
        try:
            with self._junit.written():
                result = yield
            self._junit.keep()
            self._has_junit = True
        except OSError as error:
            self._progress.note(f"a report could not be written: {error}; the verdicts are below")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return None
        return result

    def _finish_tests(self, session: pytest.Session) -> None:
        """Give every unfinished test its verdict, and find the runs of which no speed was judged."""
        unfinished = list(self._reports.unfinished(self._bench.planned.tests, session))
        self._all_judged = not unfinished
        for test in unfinished:
            nodeid = test.test.test
            properties = test.properties(outcome.known_facts(test.test, self._bench, self.store))
            self._conclusion.rows.append({**properties, "test": nodeid})
            if test.has_case:
                self._junit.close(nodeid, properties, error=test.lacks_number)
            else:
                self._junit.add_error(nodeid, properties)
                self._unreported.append(report_of(nodeid, properties, "setup", "failed"))
        for nodeid, facts in self._conclusion.unanswered():
            report = report_of(nodeid, facts, "setup" if facts["verdict"] == Verdict.ERROR else "call", "failed")
            self._junit.add_verdict(report)
            self._unreported.append(report)
        if self.store is not None:
            runs, rows = self._bench.planned.runs, self._conclusion.rows
            self._conclusion.unjudged = speed.not_judged(runs, rows, self.store.runs.summaries)

    def _compare(self, store: RecordStore) -> None:
        """Compare groups of nodes with each other, and runs with earlier ones if the user asks for it."""
        bench, runs = self._bench, self._bench.planned.runs
        self._groups = compare_groups(runs, store.runs, bench.options.group_tolerance)
        rows = [*self._groups.rows]
        wanted, place = bench.options.compare_to, bench.options.history
        if wanted is not None and place is not None:
            try:
                rows += history.compare_with_history(place, bench.session.id, runs, store.runs, wanted)
            except ConfigError as error:
                failure = f"nothing was compared with the history: {error}"
                self._made.append(Reported(name="comparison", failure=failure))
        for row in rows:
            self._conclusion.rows.append(row)
            properties = {name: value for name, value in row.items() if name != "test"}
            failed = self._conclusion.fails(row["verdict"])
            end: ReportOutcome = "failed" if failed else "passed" if row["verdict"] == Verdict.PASS else "skipped"
            report = report_of(row["test"], properties, "call", end)
            self._requirements.pytest_runtest_logreport(report)
            self._junit.add_verdict(report)
            self._unreported.append(report)

    def _judge_clauses(self) -> None:
        self._conclusion.clauses = self._requirements.verdicts()
        self._junit.describe_session(
            {f"clause[{clause.name}]": str(clause.verdict) for clause in self._conclusion.clauses}
        )
        for clause in self._conclusion.incomplete:
            facts = {"clause": clause.name, "verdict": str(clause.verdict), "reason": clause.reason}
            self._junit.add_error(f"requirements::{clause.name}", facts)

    def _write_verdicts(self, store: RecordStore) -> None:
        """Write all verdicts, for reports that are made from the session's folder."""
        rows, clauses = self._conclusion.rows, self._conclusion.clauses
        if rows or clauses:
            verdicts = SessionVerdicts(
                session=self._bench.session.id,
                facts=self._suite_facts,
                tests=tuple({name: _as_plain(value) for name, value in row.items()} for row in rows),
                clauses=tuple(clauses),
                notes=tuple(self._notes),
            )
            store.write(self._bench.session.folder / layout.VERDICTS, verdicts)
            self._junit.describe_session(verdicts.digest)

    def _make_reports(self, store: RecordStore) -> None:
        session, planned = self._bench.session, self._bench.planned
        finished = FinishedSession(
            id=session.id,
            folder=session.folder,
            planned=planned,
            runs=store.runs,
            checks=Records(store.whole_check, dict.fromkeys(store.checks)),
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


def _as_plain(value: object) -> Property:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
