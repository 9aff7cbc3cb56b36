"""All private names of pytest that this package uses; `tests/unit/plugin/test_pytest_private.py` tests each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.config.findpaths import determine_setup
from _pytest.junitxml import LogXML, bin_xml_escape, xml_key
from _pytest.runner import runtestprotocol

__all__ = [
    "LogXML", "OwnReport", "add_to_summary", "bin_xml_escape", "find_setup", "fixture_definitions",
    "get_file", "has_ini_key", "make_writer", "runtestprotocol", "set_file", "why_xdist_ended",
    "width_of", "xml_key",
]  # fmt: skip


class _OwnReport(LogXML):
    """pytest's writer for a file of ours; it takes tests and writes only while it is `wanted`."""

    wanted = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.wanted:
            super().pytest_runtest_logreport(report)

    def pytest_sessionfinish(self) -> None:
        if self.wanted:
            super().pytest_sessionfinish()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if self.wanted:
            super().pytest_terminal_summary(terminalreporter, config)


OwnReport = _OwnReport


def make_writer(config: pytest.Config, path: Path) -> OwnReport:
    """Make a writer with the user's options of XML."""
    kinds = ("junit_suite_name", "junit_logging", "junit_duration_report", "junit_family", "junit_log_passing_tests")
    return OwnReport(str(path), config.option.junitprefix, *map(config.getini, kinds))


def find_setup(paths: Sequence[str], started: Path) -> tuple[Path, Path | None]:
    """The root folder and the ini file that pytest finds by the paths of tests alone, when started in a folder."""
    rootdir, inipath, *_ = determine_setup(
        inifile=None, override_ini=None, args=paths, rootdir_cmd_arg=None, invocation_dir=started
    )
    return rootdir, inipath


def why_xdist_ended(config: pytest.Config) -> str:
    """The reason for which pytest-xdist ended the session, such as too many crashes of workers; else empty."""
    return getattr(config.pluginmanager.get_plugin("dsession"), "_summary_report", None) or ""


def fixture_definitions(metafunc: pytest.Metafunc, name: str) -> Sequence[pytest.FixtureDef[Any]]:
    """The definitions that a fixture's name stands for in a test; the last one is used."""
    return metafunc._arg2fixturedefs.get(name, ())  # noqa: SLF001


def has_ini_key(config: pytest.Config, name: str) -> bool:
    """True if the ini file has a key; `getini` returns the default as well."""
    return name in config._inicfg  # noqa: SLF001


def width_of(reporter: pytest.TerminalReporter) -> int:
    """Columns of the terminal."""
    return reporter._tw.fullwidth  # noqa: SLF001


def get_file(reporter: pytest.TerminalReporter) -> Any:
    """The file to which all output goes: pytest has no hook that is called before it writes."""
    return reporter._tw._file  # noqa: SLF001


def set_file(reporter: pytest.TerminalReporter, file: Any) -> None:
    """Let all output go to another file."""
    reporter._tw._file = file  # noqa: SLF001


def add_to_summary(reporter: pytest.TerminalReporter, category: str, report: pytest.TestReport) -> None:
    """List a report in the short summary, and count it in the last line, which `stats` alone leaves green."""
    reporter._add_stats(category, [report])  # noqa: SLF001
