"""The test cases of pytest's XML that can change no more, while others are still to come.

pytest's writer closes a case at the teardown of its test, but a plugin may then call that test again. So a verdict is
final with pytest's last word on its test, and no test of a worker that died has it before the session ends.
"""

import threading
from collections.abc import Iterable
from itertools import chain
from xml.etree import ElementTree as ET

import pytest

from pytest_llmbench.plugin.pytest_private import LogXML, NodeReporter


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
        """Take a collector that failed or was skipped: nothing more is reported of it."""
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
        """Copies of the cases that can change no more, and the node ids of their tests."""
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
