"""`--llmbench-require FILE`: clauses that have to be judged. A clause with an unjudged test is INCOMPLETE."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import RecordedClause, Verdict
from pytest_llmbench.core.yaml_files import read_yaml

_DESELECTED = "llmbench_deselected"
_WORST_FIRST = [Verdict.ERROR, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS]


def read_requirements(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the clauses of a file by name: node ids, names of tests, or patterns of either.

    In a pattern `*` stands for any text and `?` for any character. Raises ConfigError if the file is unreadable or
    empty, or a clause or test is not a text.
    """
    clauses: dict[Any, Any] = {**read_yaml(path)}
    if not clauses:
        raise ConfigError(f"{path} requires nothing: give at least one line, clause: test")
    for name, tests in clauses.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{path}: clause {name!r} is not a text to YAML, where 4.10 is 4.1: put it in quotes")
        clauses[name] = listed = tests if isinstance(tests, list) else [tests]
        wrong = [test for test in listed if not isinstance(test, str) or not test.strip()]
        if wrong or not listed:
            shown = repr(wrong[0]) if wrong else "an empty list"
            raise ConfigError(
                f"{path}: clause {name}: {shown} is not a test: give a node id, or a pattern of one, in quotes"
            )
    return {str(name): tuple(tests) for name, tests in clauses.items()}


class Requirements:
    """The clauses of `--llmbench-require`, if it is given, and how their tests end."""

    def __init__(self, config: pytest.Config, path: Path | None) -> None:
        self.clauses = read_requirements(path) if path is not None else {}
        self._config = config
        self._selected: set[str] = set()
        self._deselected: set[str] = set()
        self._ended: dict[str, tuple[Verdict, str]] = {}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note required tests that `-k`, `-m`, `--deselect` or a plugin took away."""
        self._deselected.update(item.nodeid for item in items if self._requires(item.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that are to run."""
        self._selected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """In a worker of xdist, send the controller the tests that were deselected, which only workers see."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_DESELECTED] = sorted(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note the tests that are to run, in the controller of xdist."""
        self._selected.update(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Note the tests that a worker deselected; after a crash, its successor reports them."""
        self._deselected.update((getattr(node, "workeroutput", None) and node.workeroutput.get(_DESELECTED, ())) or ())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the end of any test."""
        ended = _find_end(report)
        if ended is not None:
            self._ended[report.nodeid] = ended

    def verdicts(self) -> list[RecordedClause]:
        """How each clause ended: INCOMPLETE with the reason, or with the worst verdict of its tests."""
        return [self._verdict(name, tests) for name, tests in self.clauses.items()]

    def _requires(self, test: str) -> bool:
        return any(_matches(wanted, test) for tests in self.clauses.values() for wanted in tests)

    def _verdict(self, name: str, wanted: tuple[str, ...]) -> RecordedClause:
        known = self._selected | self._deselected | self._ended.keys()
        tests = sorted(test for test in known if any(_matches(pattern, test) for pattern in wanted))
        missing = [pattern for pattern in wanted if not any(_matches(pattern, test) for test in tests)]
        reason = f"no test of this session is {missing[0]}" if missing else self._find_gap(tests)
        verdicts = [self._ended[test][0] for test in tests if test in self._ended]
        verdict = Verdict.INCOMPLETE if reason else min(verdicts, key=_WORST_FIRST.index)
        return RecordedClause(name=name, tests=wanted, verdict=verdict, reason=reason)

    def _find_gap(self, tests: Sequence[str]) -> str:
        """The reason why tests leave their clause unjudged; empty if each has its verdict."""
        for test in tests:
            if test in self._deselected:
                return f"{test} was deselected"
            if test not in self._ended:
                return f"{test} was not judged before the session ended"
        for test in tests:
            verdict, reason = self._ended[test]
            if verdict is Verdict.SKIP:
                return f"{test} was skipped: {reason}"
            if verdict is Verdict.XFAIL:
                return f"{test} missed its threshold: {reason}"
        return ""


def _matches(wanted: str, test: str) -> bool:
    """True if a node id, or the name of its test, is what is wanted. Brackets are part of names."""
    pattern = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in wanted)
    return re.fullmatch(f"(.*::)?{pattern}", test, re.DOTALL) is not None


def _find_end(report: pytest.TestReport) -> tuple[Verdict, str] | None:
    """The verdict and reason in a report; None for a report that leaves the end of its test open."""
    properties: Mapping[str, object] = dict(report.user_properties)
    if "verdict" in properties:
        return Verdict(str(properties["verdict"])), str(properties.get("reason", ""))
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        return Verdict.SKIP, str(reason)
    if report.failed:
        return (Verdict.FAIL if report.when == "call" else Verdict.ERROR), ""
    return (Verdict.PASS, "") if report.passed and report.when == "call" else None
