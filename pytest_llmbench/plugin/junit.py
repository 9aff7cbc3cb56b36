"""JUnit XML: always in the session's folder, and where `--junitxml` says as well.

pytest keeps its writer private; this is the only file that knows of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.junitxml import LogXML, xml_key


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
        if not self._asked and config.pluginmanager.hasplugin("junitxml"):
            self._own = config.stash[xml_key] = _OwnReport(
                str(path),
                config.option.junitprefix,
                config.getini("junit_suite_name"),
                config.getini("junit_logging"),
                config.getini("junit_duration_report"),
                config.getini("junit_family"),
                config.getini("junit_log_passing_tests"),
            )
            config.pluginmanager.register(config.stash[xml_key], "llmbench-junit")

    def describe_session(self, properties: Mapping[str, str]) -> None:
        """Add suite properties: what the whole session was run on."""
        report = self._config.stash.get(xml_key, None)
        if report is not None:  # it is None with `-p no:junitxml`
            for name, value in properties.items():
                report.add_global_property(name, value)

    def discard(self) -> None:
        """Write no file of ours: this session had no runs."""
        if self._own is not None:
            # Unregistering alone would not do: pytest is already going through its list of who finishes.
            self._own.wanted = False
            self._config.pluginmanager.unregister(self._own)
            del self._config.stash[xml_key]

    def copy(self) -> None:
        """Copy the report the user asked for beside the run records."""
        if self._asked:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._config.stash[xml_key].logfile, self._path)
