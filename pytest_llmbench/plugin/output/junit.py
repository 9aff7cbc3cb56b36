"""JUnit XML: always in the session's folder, and at the path of `--junitxml` as well.

Provenance of the session's runs is in the properties of the test suite.

From the start of the runs on, the report is whole at any moment: it has every declared test, those that have their
verdict as at the end, and the others as errors. So a process that is killed leaves a report that is true. pytest's
writer closes a case at the teardown of its test, but a plugin may then call that test again. So a verdict is final with
pytest's last word on its test, which for the tests of a worker that died comes at the end of the session.
"""

import contextlib
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_llmbench.core.files import make_folder, replacing
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.pytest_private import (
    LogXML,
    OwnReport,
    has_ini_key,
    make_writer,
    xml_key,
)

# The case of what is judged at the end of a session, until that is judged. It keeps a report from being all green
# before groups of nodes, the history and required clauses have their verdicts.
END = "session::end"
ReportOutcome = Literal["passed", "failed", "skipped"]
_XML = b"<?xml"
# Readers of the file can wait this long.
SHORTEST_S = 2.0
# At most this share of the time is spent on writing: a report of ten thousand tests takes seconds.
SHARE = 0.01


class JUnit:
    """The session's own report file. pytest's writer makes it, or the one the user asked for is copied.

    It is idle until the session of ours begins: any session of pytest has it.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path: Path | None = None
        self._own: OwnReport | None = None
        self._collects = False
        self._collectors: list[pytest.CollectReport] = []  # those that failed or were skipped
        self._so_far = SoFar()
        self._refreshing: Refreshing | None = None
        self._final = contextlib.ExitStack()
        # Before the writer, to be called after it.
        config.pluginmanager.register(self, "llmbench-junit-file")
        if config.getoption("xmlpath", None) is None and config.pluginmanager.hasplugin("junitxml"):
            self._own = make_writer(config, Path(layout.JUNIT))
            config.pluginmanager.register(self._own, "llmbench-junit")

    @property
    def _writer(self) -> LogXML | None:
        """The writer of pytest, or ours in its place; None with `-p no:junitxml`."""
        return self._config.stash.get(xml_key, None)

    def begin(self, folder: Path) -> None:
        """Make the report from now on, in the session's folder and at the path that the user asked for."""
        self._path = folder / layout.JUNIT
        if self._own is not None:
            self._own.logfile, self._own.wanted = os.path.abspath(self._path), True  # noqa: PTH100  # keeps links
            self._config.stash[xml_key] = self._own
        if self._writer is not None and not has_ini_key(self._config, "junit_suite_name"):
            self._writer.suite_name = "llmbench"
        if self._collects:
            self._remove_earlier()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Remove the report of an earlier session."""
        self._collects = True
        if self._path is not None:
            self._remove_earlier()

    def _remove_earlier(self) -> None:
        """Remove an earlier session's report from the user's path: this session may be killed before it writes one.

        A session with illegal options is over by now, and leaves everything as it is.
        """
        if self._writer is not None and self._own is None:
            remove_earlier(Path(self._writer.logfile))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a collector that failed, which is a case of its own."""
        if not report.passed:
            self._collectors.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a report for the case that this process is killed."""
        if self._path is not None:
            self._so_far.take(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Have the report written with a test that is over."""
        if self._so_far.end(nodeid) and self._refreshing is not None:
            self._refreshing.note_change()

    def pytest_sessionfinish(self) -> None:
        """Put the report into its place, right after the writer: the hooks of others may read it next.

        Raises OSError if it cannot be replaced.
        """
        self._final.close()

    def follow(
        self, tests: Sequence[str], facts: Callable[[str], Mapping[str, Any]], records: str, tell: Callable[[str], None]
    ) -> None:
        """Keep the report on disk up to date, now and after each test, for the case that this process is killed.

        So an earlier session's report is replaced at once, and a killed session leaves errors instead of a green file.

        Args:
            tests: the declared ones, by node id.
            facts: the properties of one that waits for its verdict, and of `END`, as errors; called by another thread.
            records: path of the session's folder, as a reader of the report finds it.
            tell: called once if writing it fails, by another thread.
        """
        report = self._writer
        if report is None or is_special(report.logfile):
            return

        def write() -> None:
            made = make_writer(self._config, Path(report.logfile))
            made.wanted, made.suite_start, made.suite_name = True, report.suite_start, report.suite_name
            for collector in self._collectors:
                made.pytest_collectreport(collector)
            over = self._so_far.final()
            for known in chain(*over.values()):
                made.pytest_runtest_logreport(known)
            for nodeid in (*tests, END):
                if nodeid not in over:
                    _add_error(made, nodeid, facts(nodeid))
            self._complete(made, records)
            with replace_file(made):
                made.pytest_sessionfinish()
            self.keep()

        self._refreshing = Refreshing(write, tell)
        self._refreshing.start()

    def stop(self) -> None:
        """Stop writing intermediate reports; only the final one follows. Safe to call twice."""
        if self._refreshing is not None:
            self._refreshing.stop()

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Make pytest's writer, called within this block, replace the report in one step."""
        with self._final:
            if self._writer is not None and not is_special(self._writer.logfile):
                with contextlib.suppress(OSError):  # the writer has the same error, within this block
                    self._final.enter_context(replace_file(self._writer))
            yield

    def add_error(self, nodeid: str, properties: Mapping[str, Any]) -> None:
        """Add a test that is otherwise unreported: an error, with its properties and their reason."""
        if self._writer is not None:
            _add_error(self._writer, nodeid, properties)

    def add_verdict(self, report: pytest.TestReport) -> None:
        """Add a verdict without a test: a report of its call."""
        if self._writer is not None:
            _add(self._writer, report)
            _add(self._writer, report_of(report.nodeid, dict(report.user_properties), "teardown", "passed"))

    def close(self, nodeid: str, properties: Mapping[str, Any], *, error: bool = False) -> None:
        """Close the case of a test that has its outcome and lacks a report of its teardown; maybe as an error."""
        if self._writer is not None:
            _add(self._writer, report_of(nodeid, properties, "teardown", "failed" if error else "passed"))

    def describe_session(self, properties: Mapping[str, str]) -> None:
        """Add suite properties: what the whole session was run on."""
        if self._writer is not None:
            for name, value in properties.items():
                self._writer.add_global_property(name, value)

    def complete(self, records: str) -> None:
        """Complete the cases of ours, with the session's folder as a reader finds it, before the report is written."""
        if self._writer is not None:
            self._complete(self._writer, records)

    def _complete(self, writer: LogXML, records: str) -> None:
        from pytest_llmbench.plugin.output.junit_cases import complete  # noqa: PLC0415  # heavy

        # Files and lines are attributes unless the user has named a family: `xunit1` has them, `xunit2` forbids them.
        places = not has_ini_key(self._config, "junit_family")
        # A case that is over keeps its element.
        complete([case.to_xml() for case in writer.node_reporters_ordered], records, places=places)

    def keep(self) -> None:
        """Copy the report next to the records. Raises OSError: writing it failed."""
        if self._path is not None and self._own is None and self._writer is not None:
            make_folder(self._path.parent)
            with replacing(self._path, durable=True) as new:
                shutil.copyfile(self._writer.logfile, new)

    def discard(self) -> None:
        """Leave our file unwritten: this session was without runs, or was refused."""
        self._path = None
        self.stop()
        if self._own is not None and self._own.wanted:
            self._own.wanted = False
            del self._config.stash[xml_key]


def _add_error(writer: LogXML, nodeid: str, properties: Mapping[str, Any]) -> None:
    _add(writer, report_of(nodeid, properties, "setup", "failed"))
    _add(writer, report_of(nodeid, properties, "teardown", "passed"))


def _add(writer: LogXML, report: pytest.TestReport) -> None:
    """Add a report; to a test case that is open already, as of the worker that opened it."""
    workers = [worker for case, worker in writer.node_reporters if str(case) == report.nodeid and worker is not None]
    if workers:
        report.node = workers[-1]  # type: ignore[attr-defined]  # as xdist does
    writer.pytest_runtest_logreport(report)


def pause_s(took_s: float) -> float:
    """Seconds to wait after a file was written, which took `took_s` seconds."""
    return max(SHORTEST_S, took_s / SHARE)


class Refreshing:
    """Writes a file again when its content has changed. After an error, which it reports once, it goes on."""

    def __init__(self, write: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Take a function that writes it, called by one thread at a time, and one that gets the reason of an error."""
        self._write = write
        self._tell = tell
        self._told = False
        self._changed, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="llmbench-report", daemon=True)
        self._pause_s = SHORTEST_S

    def start(self) -> None:
        """Write it now, and go on in the background."""
        self._attempt()
        self._thread.start()

    def note_change(self) -> None:
        """Have it written again, when it is time for it."""
        self._changed.set()

    def stop(self) -> None:
        """Stop writing, as soon as a file that is being written is complete. Safe to call twice."""
        self._over.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self._pause_s):
            self._changed.wait()
            self._changed.clear()
            if not self._over.is_set():
                self._attempt()

    def _attempt(self) -> None:
        began = time.monotonic()
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - a border: verdicts and the report at the end do not depend on it
            if not self._told:
                self._told = True
                self._tell(str(error) if isinstance(error, OSError) else traceback.format_exc())
        self._pause_s = pause_s(time.monotonic() - began)


class SoFar:
    """The reports of tests that are over. A second thread may read them."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._final: dict[str, None] = {}
        self._lock = threading.Lock()

    def take(self, report: pytest.TestReport) -> None:
        """Take a report of a test. If a plugin calls a test again, its verdict is open until it is over again."""
        with self._lock:
            self._reports.setdefault(report.nodeid, []).append(report)
            self._final.pop(report.nodeid, None)

    def end(self, nodeid: str) -> bool:
        """Note that pytest has finished a test; return True if it has a case, which then is final."""
        with self._lock:
            if any(report.when == "teardown" for report in self._reports.get(nodeid, ())):
                self._final[nodeid] = None
            return nodeid in self._final

    def final(self) -> dict[str, list[pytest.TestReport]]:
        """The reports of each test that is over, of all its attempts, by node id."""
        with self._lock:
            return {nodeid: [*self._reports[nodeid]] for nodeid in self._final}


def is_special(logfile: str) -> bool:
    """True if a report goes to a device or a pipe, where it is written once instead of being replaced."""
    path = Path(logfile)
    return path.exists() and not path.is_file()


def remove_earlier(path: Path) -> None:
    """Remove an XML file; any other file, which the user may have named by mistake, stays."""
    with contextlib.suppress(OSError):  # it is written later, or the user hears of it then
        if path.is_file():
            with path.open("rb") as file:
                is_xml = file.read(len(_XML)) == _XML
            if is_xml:
                path.resolve().unlink()


@contextlib.contextmanager
def replace_file(writer: LogXML) -> Iterator[None]:
    """Have a writer write a new file, which then replaces its file; where that is a link, what the link leads to."""
    logfile = writer.logfile
    path = Path(logfile).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=True) as new:
        writer.logfile = os.fspath(new)
        try:
            yield
        finally:
            writer.logfile = logfile


def report_of(
    nodeid: str,
    properties: Mapping[str, Any],
    when: Literal["setup", "call", "teardown"],
    outcome: ReportOutcome,
) -> pytest.TestReport:
    """A report in pytest's form, for a test that pytest leaves without one."""
    file = nodeid.split("::", maxsplit=1)[0]
    reason = str(properties.get("reason", ""))
    longrepr = {"passed": None, "failed": reason, "skipped": (file, 1, f"{properties['verdict']}: {reason}")}[outcome]
    return pytest.TestReport(
        nodeid, (file, None, file), {}, outcome, longrepr, when, user_properties=properties.items()
    )
