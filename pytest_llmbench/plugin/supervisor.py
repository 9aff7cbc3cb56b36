"""The process that owns the runs: the only one without xdist, the controller with it."""

import time
from collections.abc import Generator

import pytest

from pytest_llmbench.cluster.heartbeat import write_stop
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.collection.checks import check_names
from pytest_llmbench.plugin.interruption import Interruption
from pytest_llmbench.plugin.options import usage_errors
from pytest_llmbench.plugin.output import terminal
from pytest_llmbench.plugin.output.progress import LiveLine
from pytest_llmbench.plugin.output.provenance import command_of
from pytest_llmbench.plugin.output.results import Results
from pytest_llmbench.plugin.verdict.outcome import declared_tests
from pytest_llmbench.session.folder import KeptSystem, point_to_latest
from pytest_llmbench.session.live.snapshot import LiveSnapshot
from pytest_llmbench.session.live.writer import LiveWriter
from pytest_llmbench.session.planning import describe
from pytest_llmbench.session.record_store import AnyRecord, RecordStore
from pytest_llmbench.session.replay import replay
from pytest_llmbench.session.runner import Runner

_LOOK_S = 0.2


class Supervisor:
    """Starts the runs once the tests are known, and ends all that still runs with the session."""

    def __init__(
        self, config: pytest.Config, bench: Bench, progress: LiveLine, interruption: Interruption, results: Results
    ) -> None:
        self.results = results
        self._runner: Runner | None = None
        self._live: LiveWriter | None = None
        self._config = config
        self._bench = bench
        self._progress = progress
        self._interruption = interruption

    def start_runs(self) -> None:
        """Start every planned run; the waiter gives tests their records.

        Raises ConfigError if the folder of the reports is read-only, the checks lack nodes, or runs and checks could
        take more than the budget.
        """
        self._bench.check_nodes_are_held()
        self._bench.check_budget()
        settings, session = self._bench.settings, self._bench.session
        folder = session.folder
        try:
            store = self.results.store = RecordStore(settings.system, self._bench.journal)
            live = LiveWriter(store, settings, session, lambda: self._bench.planned)
            self._bench.waiter = self
            store.command = command_of(self._config, self._bench.planned.tests)
            store.note_begin(settings, session, store.command)
            self._bench.planned = self._bench.planned.model_copy(update={"began": time.time()})
            write_model(folder / layout.PLAN, self._bench.planned)
            write_model(folder / layout.SYSTEM, KeptSystem.of(settings))
            self.results.expect()
            self._live = live
            live.start()
            with self._interruption.ignoring(0 if settings.cluster == "debug" else 1):
                if settings.replay is not None:
                    replay(self._bench.planned, settings, session, store)
                else:
                    self._runner = Runner(settings, session, store, self._bench.earlier)
                    self._runner.start(self._bench.planned)
            try:
                point_to_latest(folder)
            except OSError as error:
                self._progress.note(f"no link to the latest session: {error}")
        except Exception as error:
            # Records are missing so far. The runner is stopped with the session; tests that wait get the reason first.
            self.results.store = None
            if isinstance(error, OSError):
                raise ConfigError(
                    f"reports cannot be written to {folder}: {error}; give another --llmbench-run-dir"
                ) from error
            raise

    def wait(self, kind: type[AnyRecord], name: str) -> AnyRecord:
        """Block until the run or check has a record, and show the progress of all runs; every one gets a record.

        The first signal that ends the session makes the runner end its runs, which soon have a record, so it is only
        noted.
        """
        store = self.results.store
        with self._interruption.ignoring(1):
            while store is not None:
                try:
                    record = store.wait(kind, name, _LOOK_S)
                except ConfigError as error:
                    pytest.fail(str(error), pytrace=False)
                self._progress.take(store.notes)
                if record is not None:
                    self._progress.clear()
                    return record
                self._progress.show(self.latest)
        pytest.fail(f"{kind.about} {name}: the runs were not started", pytrace=False)

    def repeat(self, series: str, number: int, look: int) -> None:
        """Make further runs, up to that number of a series, for a test that waits for them."""
        new, store = self._bench.add_repeats(series, number, look), self.results.store
        if not new or self._runner is None or store is None:
            return
        store.notes.append(f"{series} decides nothing yet: {counted(len(new), 'more run')}")
        store.write(self._bench.session.folder / layout.PLAN, self._bench.planned)
        self._runner.repeat(new)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the runs and checks that the collected tests need."""
        with usage_errors():
            self._bench.plan(declared_tests(session.items), check_names(session.items))

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Print what will run where."""
        if self._bench.planned.empty:
            return []
        runs_tests = not (config.option.collectonly or options.plan_only(config))
        return [*options.left_out_lines(config, used=False), *terminal.header(self._bench, runs_tests=runs_tests)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """Start the runs, now that tests are about to run; with `--plan`, print the plan instead of running any.

        Collection also ends where no test will run: `--fixtures`, `--collect-only`, errors in other files.
        """
        option = session.config.option
        looked_at = option.collectonly or session.config.getoption("setupplan", False)
        self.results.runs_tests = not (looked_at or options.plan_only(session.config))
        # With xdist, a thread of the controller starts them once a worker has planned them, perhaps before this hook.
        follows_workers = session.config.pluginmanager.has_plugin("dsession")
        if self._interruption.by is not None and not follows_workers:
            self._interruption.interrupt()
        in_vain = session.testsfailed > 0 and not option.continue_on_collection_errors
        if options.plan_only(session.config):
            if in_vain:
                raise session.Interrupted("errors during collection")
            return self._print_plan(session)
        if follows_workers:
            return None
        if self._bench.planned.empty or in_vain or looked_at:
            self._interruption.give_signals_back()
            return None
        try:
            self.take_signals(session)
            with usage_errors():
                self.start_runs()
        except pytest.UsageError as error:
            self.results.refuse(str(error))
            raise
        if self._interruption.by is not None:
            self._interruption.interrupt()
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather verdicts, and give the nodes back after the last one."""
        self.results.take(report)
        if self.results.complete and self._runner is not None:
            self._runner.expect_no_repeats()

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """End what still runs before anything is reported, and hand the results to the other reporters."""
        self._interruption.ignore_all()
        self._stop()
        self._progress.close()
        self.results.finish(session)
        result = yield
        self.results.end(session)
        self._end_live(int(session.exitstatus))
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdicts."""
        self.results.summarise(terminalreporter)

    def pytest_unconfigure(self) -> None:
        """Stop the runs, also if the session broke down before it could finish."""
        self._stop()
        self._end_live(int(pytest.ExitCode.INTERNAL_ERROR))
        self._interruption.give_signals_back()

    def _print_plan(self, session: pytest.Session) -> bool:
        bench = self._bench
        lines, possible = describe(
            bench.planned, bench.settings, bench.session, left_out=bench.left_out, required=bench.requires_verdict,
            session_min=bench.options.session_time,
        )  # fmt: skip
        for line in lines:
            self._progress.print(line)
        with usage_errors():
            bench.check_budget()
        session.testsfailed += not possible
        return True

    def _stop(self) -> None:
        """End all runs. After a second signal the user is in a hurry: the processes are left to end by themselves."""
        if self._runner is None:
            return
        try:
            with self._interruption.ignoring(1):
                self._runner.stop(self._progress.note)
        except KeyboardInterrupt:
            self._progress.note("not waiting for the processes that still end; they end within a minute")
            write_stop(self._bench.session.folder, "the session ended")

    @property
    def latest(self) -> LiveSnapshot | None:
        """The last snapshot of the session; None before its runs start."""
        return self._live.latest if self._live is not None else None

    def _end_live(self, exit_code: int) -> None:
        """Let `llmbench watch` and other readers of the live state see how the session ended."""
        if self._live is not None:
            self._live.stop(self.results.word, exit_code)

    def take_signals(self, session: pytest.Session) -> None:
        """Handle SIGTERM, by which CI systems end a job, and SIGHUP of a lost connection: free the nodes and report.

        `--llmbench-session-time` does the same when it is reached.
        """

        def end(reason: str) -> None:
            session.shouldstop = reason
            self.begin_no_more(reason)

        self._interruption.take_signals(end)
        if (longest := self._bench.options.session_time) is not None:
            self._interruption.end_after(longest)

    def begin_no_more(self, reason: str = "") -> None:
        """Cancel what has yet to begin, and return at once; the records of the runs that this ends have the reason."""
        if self._runner is not None:
            self._runner.begin_no_more(reason)
