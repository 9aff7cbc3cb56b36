"""The side that owns the runs: the only process without xdist, the controller with it."""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.cluster.heartbeat import tell_the_end
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.records import Judgement, Verdict, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.health import check_names
from pytest_llmbench.plugin.options import usage_errors
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.junit import JUnit, suite_properties
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.reports import Reported, make_reports
from pytest_llmbench.plugin.verdict import outcome, speed
from pytest_llmbench.plugin.verdict.boards import KeeperBoard
from pytest_llmbench.plugin.verdict.declared import all_declared, facts
from pytest_llmbench.plugin.verdict.groups import ComparedGroups, compare_groups
from pytest_llmbench.plugin.verdict.requirements import ClauseVerdict, Requirements
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.plugin.verdict.unfinished import Reports, report_of, report_of_verdict, verdict_of_unfinished
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.session.keeper import Keeper
from pytest_llmbench.session.planning import describe
from pytest_llmbench.session.replay.replayer import replay
from pytest_llmbench.session.runner import Runner


class Supervisor:
    """Starts the runs once the tests are known, gathers their verdicts, and leaves nothing behind."""

    def __init__(
        self, config: pytest.Config, bench: Bench, progress: LiveLine, reports: Reports, requirements: Requirements
    ) -> None:
        self.keeper: Keeper | None = None
        self._runner: Runner | None = None
        self._config = config
        self._bench = bench
        self._progress = progress
        self._junit = JUnit(config, bench.session.folder / layout.JUNIT)
        self._rows: list[Mapping[str, Any]] = []
        self._waiting: set[str] = set()
        self._unreported: list[pytest.TestReport] = []
        self._made: list[Reported] = []
        self._broken = outcome.BrokenRuns()
        self._in_earnest = self._all_judged = False
        self._unjudged: Mapping[str, Sequence[str]] = {}
        self._reports = reports
        self._requirements = requirements
        self._clauses: list[ClauseVerdict] = []
        self._groups = ComparedGroups(rows=(), not_compared={})
        self._interruption = reports.interruption

    def start_runs(self) -> None:
        """Start every planned run; tests wait on the board.

        Raises:
            ConfigError: nothing can be written where the reports should go, or no node is held for the checks.
        """
        self._bench.check_nodes_are_held()
        # Their ini keys may be wrong.
        _ = self._bench.requires_verdict, options.value(self._config, "group-tolerance")
        folder = self._bench.session.folder
        settings, session = self._bench.settings, self._bench.session
        try:
            keeper = self.keeper = Keeper(settings.system, self._bench.journal)
            self._bench.board = KeeperBoard(keeper, self._progress, self._interruption, self.repeat)
            words, tests = self._config.invocation_params.args, self._bench.planned.tests
            keeper.note_begin(settings.cluster, map(str, words), (test.test for test in tests))
            write_model(folder / layout.PLAN, self._bench.planned)
            self._waiting = {test.test for test in self._bench.planned.tests}
            self._expect_reports()
            with self._interruption.bearing(0 if settings.cluster == "debug" else 1):
                if settings.replay is not None:
                    replay(self._bench.planned, settings, session, keeper)
                else:
                    self._runner = Runner(settings, session, keeper)
                    self._runner.start(self._bench.planned)
        except Exception as error:
            # There is no record to add to. The runner is stopped with the session: whoever waits is told why before.
            self.keeper = None
            if isinstance(error, OSError):
                raise ConfigError(f"reports cannot be written to {folder}: {error}; give another --run-dir") from error
            raise

    def repeat(self, series: str, number: int, look: int) -> None:
        """Make further runs, up to that number of a series, for a test that waits for them."""
        new = self._bench.add_repeats(series, number, look)
        if not new or self._runner is None or self.keeper is None:
            return
        self.keeper.notes.append(f"{series} decides nothing yet: {counted(len(new), 'more run')}")
        self.keeper.write(self._bench.session.folder / layout.PLAN, self._bench.planned)
        self._runner.repeat(new)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the runs and checks that the collected tests need."""
        with usage_errors():
            self._bench.plan(all_declared(session.items), check_names(session.items))

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Say what will run where."""
        in_earnest = not (config.option.collectonly or options.plan_only(config))
        if self._bench.planned.empty:
            return []
        left_out = [] if options.asked_of_others(config) else options.told_of_left_out(config)
        return [*left_out, *terminal.header(self._bench, in_earnest=in_earnest)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """Start the runs, now that tests are about to run; with `--plan`, print the plan instead of running any.

        Collection also ends where no test will run: `--fixtures`, `--collect-only`, errors in other files.
        """
        option = session.config.option
        looked_at = option.collectonly or session.config.getoption("setupplan", False)
        self._in_earnest = not (looked_at or options.plan_only(session.config))
        in_vain = session.testsfailed > 0 and not option.continue_on_collection_errors
        if options.plan_only(session.config):
            if in_vain:
                raise session.Interrupted("errors during collection")
            return self._print_plan(session)
        if not (self._bench.planned.empty or in_vain or looked_at):
            self.take_signals(session)
            try:
                with usage_errors():
                    self.start_runs()
            except pytest.UsageError as error:
                self._reports.note_end(str(error))
                self._junit.discard()
                raise
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the verdict of every test that is over, and tell a broken run once."""
        self._broken.shorten(report)
        properties = outcome.verdict_of(report)
        if properties is not None:
            self._rows.append({**properties, "test": report.nodeid})
            if self.keeper is not None:
                self.keeper.note("judged", sync=False, name=report.nodeid, verdict=str(properties["verdict"]))
            self._waiting.discard(report.nodeid)
        if not self._waiting and self._runner is not None:
            self._runner.expect_no_repeats()

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """End what still runs before anything is reported, and hand the results to the other reporters."""
        self._interruption.bear_all()
        self._stop()
        if self._declares_tests:
            self._finish_tests(session)
            self._judge_groups(session)
            self._junit.describe_session(self._facts())
        elif not (self._in_earnest and self._requirements.clauses):
            self._junit.discard()
        if self._in_earnest:
            self._judge_clauses(session)
        if self.keeper is not None:
            self.keeper.add_judgements(_judgements(self._rows))
            if self._all_judged:
                self.keeper.note_end(self._bench.planned)
            self._make_reports(self.keeper)
            self._progress.take(self.keeper.notes)
            self._junit.describe_session(suite_properties(self.keeper.runs))
        result = yield
        broken = any(report.failure for report in self._made)
        if broken or (self.keeper is not None and self.keeper.unwritten):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return result

    @property
    def _declares_tests(self) -> bool:
        """Whether tests of ours were to end in verdicts: they were collected, and not only to be looked at."""
        return self._in_earnest and bool(self._bench.planned.tests)

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

    def _expect_reports(self) -> None:
        killed = {"verdict": str(Verdict.ERROR), "reason": "pytest was killed before it could report this test"}
        tests = self._bench.planned.tests
        try:
            self._junit.expect({test.test: {**facts(test, self._bench), **killed} for test in tests})
        except OSError as error:  # it is tried again at the end, and costs no verdict
            self._progress.note(f"a report cannot be written: {error}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdict table, and leave the tests that nothing else reports to pytest's own list of errors."""
        terminal.add_reports(terminalreporter, self._unreported)
        if checked := [row for row in self._rows if "check" in row]:
            terminal.health_table(terminalreporter, checked, self._bench)
        if trained := [row for row in self._rows if "check" not in row]:
            terminal.verdict_table(terminalreporter, trained, self._bench)
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
            terminal.report_lines(terminalreporter, report)
        if self.keeper is not None and self._not_tested:
            terminalreporter.write_line(f"NOT TESTED, too few nodes for another run: {self._not_tested}", red=True)

    def pytest_unconfigure(self) -> None:
        """Stop even when the session broke down before it could finish."""
        self._stop()

    def copy_junit(self) -> None:
        """Keep the report next to the records."""
        self._junit.copy()

    def _print_plan(self, session: pytest.Session) -> bool:
        bench = self._bench
        lines, possible = describe(bench.planned, bench.settings, bench.session)
        for line in lines:
            self._progress.print(line)
        if not possible:
            session.testsfailed += 1
        return True

    def _stop(self) -> None:
        """End all runs. A second signal means that the user does not want to wait: the processes end by themselves."""
        if self._runner is None:
            return
        try:
            with self._interruption.bearing(1):
                self._runner.stop(self._progress.note)
        except KeyboardInterrupt:
            self._progress.note("not waiting for the processes that still end; they end within a minute")
            tell_the_end(self._bench.session.folder, "the session ended")

    def take_signals(self, session: pytest.Session) -> None:
        """A CI system ends a job with SIGTERM, a lost connection with SIGHUP: free the nodes, and report."""

        def end(why: str) -> None:
            session.shouldstop = why
            self.begin_no_more()

        self._interruption.take_signals(end)

    def begin_no_more(self) -> None:
        """Begin nothing that has not begun, and return at once."""
        if self._runner is not None:
            self._runner.begin_no_more()

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

    def __init__(self, supervisor: Supervisor, progress: LiveLine) -> None:
        self._supervisor = supervisor
        self._progress = progress

    @pytest.hookimpl(trylast=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Say which report could not be written, and fail the session for it."""
        try:
            result = yield
            self._supervisor.copy_junit()
        except OSError as error:
            self._progress.note(f"a report could not be written: {error}; the verdicts are below")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return None
        return result


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
