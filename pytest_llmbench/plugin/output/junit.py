"""JUnit XML: always in the session's folder, and where `--junitxml` says as well.

pytest keeps its writer private; this is the only file that knows of it. Provenance of the session's runs is in the
properties of the test suite.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from _pytest.junitxml import LogXML, xml_key

from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.ours import MissedEvents
from pytest_llmbench.plugin.output.cases import complete
from pytest_llmbench.plugin.verdict.unfinished import report_of
from pytest_llmbench.reporting.ci.strict import strict
from pytest_llmbench.session.kept_runs import Glance


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
        if not self._asked and config.pluginmanager.hasplugin("junitxml"):
            self._own = config.stash[xml_key] = _writer(config, path)
            config.pluginmanager.register(config.stash[xml_key], "llmbench-junit")

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

    def expect(self, tests: Mapping[str, Mapping[str, Any]], records: str) -> None:
        """Write the report as it would be if this process were killed now: every test an ERROR.

        A report cannot be written after a SIGKILL, and the report of an earlier session must not be taken for this
        one's.

        Args:
            tests: the properties of each, by node id.
            records: path of the session's folder, as a reader of the report finds it.
        """
        report = self._config.stash.get(xml_key, None)
        if report is None:  # with `-p no:junitxml`
            return
        expected = _writer(self._config, Path(report.logfile))
        expected.pytest_sessionstart()
        for nodeid, properties in tests.items():
            _add_error(expected, nodeid, properties)
        self._complete(expected, records)
        expected.pytest_sessionfinish()
        self.copy()

    def add_error(self, nodeid: str, properties: Mapping[str, Any]) -> None:
        """Add a test that nothing else reports: an error, with its properties and their reason."""
        report = self._config.stash.get(xml_key, None)
        if report is not None:
            _add_error(report, nodeid, properties)

    def add_verdict(self, report: pytest.TestReport) -> None:
        """Add a verdict that no test has: a report of its call."""
        writer = self._config.stash.get(xml_key, None)
        if writer is not None:
            _add(writer, report)
            _add(writer, report_of(report.nodeid, dict(report.user_properties), "teardown", "passed"))

    def close(self, nodeid: str, properties: Mapping[str, Any], *, error: bool = False) -> None:
        """Add its properties to a test that has its outcome, and whose teardown is never reported; maybe an error."""
        report = self._config.stash.get(xml_key, None)
        if report is not None:
            _add(report, report_of(nodeid, properties, "teardown", "failed" if error else "passed"))

    def describe_session(self, properties: Mapping[str, str]) -> None:
        """Add suite properties: what the whole session was run on."""
        report = self._config.stash.get(xml_key, None)
        if report is not None:  # it is None with `-p no:junitxml`
            for name, value in properties.items():
                report.add_global_property(name, value)

    def complete(self, records: str) -> None:
        """Complete the cases of ours, before the report is written.

        `file` and `line` are attributes unless the user has named a family of XML: pytest's `xunit1` has them anyway,
        `xunit2` must not have them.

        Args:
            records: path of the session's folder, as a reader of the report finds it.
        """
        report = self._config.stash.get(xml_key, None)
        if report is not None:
            self._complete(report, records)

    def _complete(self, writer: LogXML, records: str) -> None:
        places = "junit_family" not in self._config._inicfg  # noqa: SLF001 - getini does not tell a default
        # A case that is over keeps its element.
        complete([case.to_xml() for case in writer.node_reporters_ordered], records, places=places)

    def write_strict(self) -> None:
        """Write the report once more, for readers that refuse what Jenkins' schema does not know.

        Raises:
            OSError: it cannot be written.
        """
        if self._wanted and self._path.is_file():
            report = ET.parse(self._path).getroot()  # noqa: S314 - pytest has just written it
            text = ET.tostring(strict(report), encoding="unicode")
            path = self._path.with_name(layout.JUNIT_STRICT)
            write_text(path, f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')

    def discard(self) -> None:
        """Write no file of ours: this session had no runs, or there is no place for it."""
        self._wanted = False
        if self._own is not None:
            # Unregistering alone would not do: pytest is already going through its list of who finishes.
            self._own.wanted = False
            self._config.pluginmanager.unregister(self._own)
            self._own = None
            del self._config.stash[xml_key]

    def copy(self) -> None:
        """Copy the report the user asked for into the session's folder."""
        if self._asked and self._wanted:
            make_folder(self._path.parent)
            shutil.copyfile(self._config.stash[xml_key].logfile, self._path)


def _writer(config: pytest.Config, path: Path) -> _OwnReport:
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


def suite_properties(runs: Mapping[str, Glance]) -> dict[str, str]:
    """The versions, provenance and command of runs, by run key.

    Returns:
        Facts that are the same in all runs under their name, the others as `name[run key]`. A run that did not get far
        enough to say anything of itself does not count as different.
    """
    facts = {key: dict(run.facts) for key, run in runs.items() if run.facts}
    properties = {}
    for name in dict.fromkeys(name for told in facts.values() for name in told):
        values = {key: told[name] for key, told in facts.items() if name in told}
        if len(values) == len(facts) and len(set(values.values())) == 1:
            properties[name] = next(iter(values.values()))
        else:
            properties |= {f"{name}[{key}]": value for key, value in values.items()}
    return properties
