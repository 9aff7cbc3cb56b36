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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.core.files import make_folder, replacing
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.plugin.missed import MissedEvents
from pytest_llmbench.plugin.output.junit_cases import complete
from pytest_llmbench.plugin.output.refreshing import Refreshing
from pytest_llmbench.plugin.pytest_private import LogXML, NodeReporter, xml_key
from pytest_llmbench.plugin.verdict.unfinished import report_of

# The case of what is judged at the end of a session, until that is judged. It keeps a report from being all green
# before groups of nodes, the history and required clauses have their verdicts.
_END = "session::end"
_NO_VERDICT = "no verdict yet: pytest still runs, or was killed before it could report"


class _OwnReport(LogXML):
    """pytest's writer for a file of ours, which a session without runs leaves unwritten.

    Attributes:
        wanted: whether to write it.
    """

    wanted = True

    def pytest_sessionfinish(self) -> None:
        if self.wanted:
            super().pytest_sessionfinish()


class JUnit:
    """The session's own report file. pytest's writer makes it, or the one the user asked for is copied."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._asked = config.getoption("xmlpath", None) is not None
        self._own: _OwnReport | None = None
        self._wanted = True
        self._so_far: SoFar | None = None
        self._refreshing: Refreshing | None = None
        self._final = contextlib.ExitStack()
        # Before the writer, to be called after it.
        config.pluginmanager.register(self, "llmbench-junit-file")
        if not self._asked and config.pluginmanager.hasplugin("junitxml"):
            self._own = config.stash[xml_key] = _make_writer(config, path)
            config.pluginmanager.register(config.stash[xml_key], "llmbench-junit")

    @property
    def _writer(self) -> LogXML | None:
        """The writer of pytest, or ours in its place; None with `-p no:junitxml`."""
        return self._config.stash.get(xml_key, None)

    def catch_up(self, missed: MissedEvents) -> None:
        """Take the place that this has in a session of ours from the start, and what it missed.

        The user's writer is called before ours at the end, and after ours in the terminal, as one that is registered
        after us.
        """
        manager = self._config.pluginmanager
        if self._own is not None:
            self._own.pytest_sessionstart()
            self._own.suite_start = missed.start or self._own.suite_start
            for report in missed.collected:
                self._own.pytest_collectreport(report)
        elif (asked := self._config.stash.get(xml_key, None)) is not None:
            name = manager.get_name(asked)
            manager.unregister(asked)
            manager.register(asked, name)
        self.pytest_sessionstart()
        self.pytest_collection()
        for report in missed.collected:
            self.pytest_collectreport(report)

    def pytest_sessionstart(self) -> None:
        """Follow the writer."""
        if self._writer is not None and self._so_far is None:
            self._so_far = SoFar(self._writer)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Remove the report of an earlier session at this one's path: this one may be killed before it writes its own.

        It happens at collection, so that a session with illegal options leaves everything as it is.
        """
        if self._writer is not None and self._asked:
            remove_earlier(Path(self._writer.logfile))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a collector that failed, which the writer has by now."""
        if self._so_far is not None:
            self._so_far.add_collector(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take back the verdict of a test that a plugin calls again."""
        if self._so_far is not None:
            self._so_far.reopen(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Have the report written with a test that is over."""
        if self._so_far is not None and self._so_far.end(nodeid) and self._refreshing is not None:
            self._refreshing.note_change()

    def pytest_sessionfinish(self) -> None:
        """Put the report into its place, right after the writer: the hooks of others may read it next.

        Raises:
            OSError: replacing the file failed.
        """
        self._final.close()

    def follow(
        self, tests: Sequence[str], facts: Callable[[str], Mapping[str, Any]], records: str, tell: Callable[[str], None]
    ) -> None:
        """Write the report as it is to be if this process is killed, now and whenever a test is over.

        So an earlier session's report is replaced at once, and a killed session leaves errors instead of a green file.

        Args:
            tests: the declared ones, by node id.
            facts: the properties of one that waits for its verdict; called by another thread.
            records: path of the session's folder, as a reader of the report finds it.
            tell: called once if writing it fails, by another thread.
        """
        report, so_far = self._writer, self._so_far
        if report is None or so_far is None or is_special(report.logfile):
            return

        def write() -> None:
            made = _make_writer(self._config, Path(report.logfile))
            made.suite_start = report.suite_start
            cases, over = so_far.cases()
            add_cases(made, cases)
            pending = {"verdict": str(Verdict.ERROR), "reason": f"{_NO_VERDICT} this test"}
            for nodeid in tests:
                if nodeid not in over:
                    _add_error(made, nodeid, {**facts(nodeid), **pending})
            _add_error(made, _END, {**pending, "reason": f"{_NO_VERDICT} the session"})
            self._complete(made, records)
            with beside(made):
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
        """Have pytest's writer, which is called in here, replace the report in one step."""
        with self._final:
            if self._writer is not None and not is_special(self._writer.logfile):
                self._final.enter_context(beside(self._writer))
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
        """Complete the cases of ours, before the report is written.

        `file` and `line` are attributes unless the user has named a family of XML: pytest's `xunit1` has them anyway,
        and the schema of `xunit2` forbids them.

        Args:
            records: path of the session's folder, as a reader of the report finds it.
        """
        if self._writer is not None:
            self._complete(self._writer, records)

    def _complete(self, writer: LogXML, records: str) -> None:
        places = "junit_family" not in self._config._inicfg  # noqa: SLF001 - getini returns the default as well
        # A case that is over keeps its element.
        complete([case.to_xml() for case in writer.node_reporters_ordered], records, places=places)

    def keep(self) -> None:
        """Copy the report next to the records.

        Raises:
            OSError: writing it failed.
        """
        if not self._wanted:
            return
        if self._asked:
            make_folder(self._path.parent)
            with replacing(self._path, durable=True) as new:
                shutil.copyfile(self._config.stash[xml_key].logfile, new)

    def discard(self) -> None:
        """Leave our file unwritten: this session was without runs, or was refused."""
        self._wanted = False
        self.stop()
        if self._own is not None:
            # Unregistering alone is too late: pytest has its list of the hooks to call at the end already.
            self._own.wanted = False
            self._config.pluginmanager.unregister(self._own)
            self._own = None
            del self._config.stash[xml_key]


def _make_writer(config: pytest.Config, path: Path) -> _OwnReport:
    return _OwnReport(
        str(path),
        config.option.junitprefix,
        config.getini("junit_suite_name"),
        config.getini("junit_logging"),
        config.getini("junit_duration_report"),
        config.getini("junit_family"),
        config.getini("junit_log_passing_tests"),
    )


def _add_error(writer: LogXML, nodeid: str, properties: Mapping[str, Any]) -> None:
    _add(writer, report_of(nodeid, properties, "setup", "failed"))
    _add(writer, report_of(nodeid, properties, "teardown", "passed"))


def _add(writer: LogXML, report: pytest.TestReport) -> None:
    """Add a report; to a test case that is open already, as of the worker that opened it."""
    workers = [worker for case, worker in writer.node_reporters if str(case) == report.nodeid and worker is not None]
    if workers:
        report.node = workers[-1]  # type: ignore[attr-defined]  # as xdist does
    writer.pytest_runtest_logreport(report)


class SoFar:
    """Follows pytest's writer from before the first test on. One thread reports, another may ask."""

    def __init__(self, writer: LogXML) -> None:
        self._writer = writer
        self._collected: list[NodeReporter] = []
        self._closed: dict[str, list[NodeReporter]] = {}
        self._final: dict[str, list[NodeReporter]] = {}
        self._lock = threading.Lock()
        finalize = writer.finalize

        def close(report: pytest.TestReport) -> None:
            case = writer.node_reporter(report)
            finalize(report)
            self._closed.setdefault(report.nodeid, []).append(case)

        writer.finalize = close  # type: ignore[method-assign]  # its cases forget their test when they are closed

    def add_collector(self, report: pytest.CollectReport) -> None:
        """Take a collector that failed or was skipped: its report is complete."""
        if not report.passed:
            self._collected.append(self._writer.node_reporter(report))

    def reopen(self, nodeid: str) -> None:
        """Take a test that is reported once more for one without a verdict."""
        with self._lock:
            if nodeid in self._final:
                self._closed[nodeid] = self._final.pop(nodeid)

    def end(self, nodeid: str) -> bool:
        """Take pytest's last word on a test; whether it has a final case."""
        with self._lock:
            if nodeid in self._closed:
                self._final[nodeid] = self._closed.pop(nodeid)
            return nodeid in self._final

    def cases(self) -> tuple[list[ET.Element], set[str]]:
        """Copies of the cases that are final, and the node ids of their tests."""
        with self._lock:
            reporters, tests = [*chain(self._collected, *self._final.values())], {*self._final}
        return [_copy(reporter.to_xml()) for reporter in reporters], tests


class _Made(NodeReporter):
    """A case that has its element."""

    def __init__(self, case: ET.Element) -> None:
        self._case = case

    def to_xml(self) -> ET.Element:
        return self._case


def _copy(case: ET.Element) -> ET.Element:
    """A copy that can be completed: what is completed later may have another name by then."""
    made = ET.Element(case.tag, case.attrib)
    for child in case:
        if child.tag != "system-out":
            made.append(child)
        else:
            ET.SubElement(made, child.tag, child.attrib).text = child.text
    return made


def add_cases(writer: LogXML, cases: Iterable[ET.Element]) -> None:
    """Give a writer cases that another one made."""
    for case in cases:
        ends = [child.tag for child in case if child.tag in {"error", "failure", "skipped"}]
        for end in ends or ["passed"]:
            writer.add_stats(end)
        writer.node_reporters_ordered.append(_Made(case))


_XML = b"<?xml"


def is_special(logfile: str) -> bool:
    """Whether a report goes to a device or a pipe, where it is written once instead of being replaced."""
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
def beside(writer: LogXML) -> Iterator[None]:
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
