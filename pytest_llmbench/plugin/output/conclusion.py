"""The conclusion of a session: its verdict in one word, its exit code, and the files that CI systems read."""

import datetime as dt
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.core.files import share, write_text
from pytest_llmbench.core.record.records import RecordedClause, Verdict, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.reporting.ci import annotate_tests, summary
from pytest_llmbench.reporting.verdict import (
    DETAILED,
    FAILING,
    SessionVerdict,
    Word,
    count_verdicts,
    decide,
    detailed_exit_code,
)

_GREEN = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, EXIT_CODE}
_FINAL = {"passed", "failed", "skipped"}


class Conclusion:
    """All verdicts of a session, and what follows from them.

    Attributes:
        rows: the properties of each verdict.
        clauses: how each required clause ended.
        unjudged: runs without a verdict on their speed, by the reason.
        interrupted: the signal, or the limit of time, that ended the session; else empty.
        word: the verdict on the session in one word, once it is written; else `broken`.
        overruled: tests whose failure something else reported as passed, in order.
    """

    def __init__(self, config: pytest.Config, bench: Bench) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.clauses: Sequence[RecordedClause] = ()
        self.unjudged: Mapping[str, Sequence[str]] = {}
        self.overruled: dict[str, None] = {}
        self.interrupted = ""
        self.word: Word = "broken"
        self._failed: set[str] = set()
        self._attempts: dict[str, tuple[tuple[str, object], ...]] = {}
        self._config = config
        self._bench = bench

    @property
    def records(self) -> str:
        """The session's folder for readers on other machines: seen from where pytest was started, else its name."""
        started, folder = self._config.invocation_params.dir.resolve(), self._bench.session.folder.resolve()
        return folder.relative_to(started).as_posix() if folder.is_relative_to(started) else folder.name

    @property
    def warned(self) -> bool:
        """True if a test that is INCONCLUSIVE only warns."""
        return self._bench.options.inconclusive == "warn"

    @property
    def incomplete(self) -> list[RecordedClause]:
        """The required clauses that are unjudged."""
        return [clause for clause in self.clauses if clause.verdict is Verdict.INCOMPLETE]

    def fails(self, verdict: object) -> bool:
        """True if a test with this verdict fails."""
        return str(verdict) in FAILING and not (verdict == Verdict.INCONCLUSIVE and self.warned)

    def correct(self, report: pytest.TestReport) -> None:
        """Turn a report back into a failure if its verdict is one and its test has not failed yet.

        A verdict is in the properties of a report as soon as it is decided, before hooks of others see the report. A
        test that is expected to fail, by pytest's marker or by `xfail` of its reference, has another verdict.
        """
        verdict = dict(report.user_properties).get("verdict")
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.outcome not in _FINAL:  # another plugin calls the test again: its last report counts, once
            if self.fails(verdict):
                self._attempts.setdefault(report.nodeid, tuple(report.user_properties))
        else:
            attempt = self._attempts.get(report.nodeid)
            if attempt and report.when != "setup" and not self.fails(verdict):
                report.user_properties[:] = (dict(report.user_properties) | dict(attempt)).items()
            properties = dict(report.user_properties)
            ends = report.when == "call" or report.skipped
            if report.nodeid not in self._failed and self.fails(properties.get("verdict")) and (ends or not attempt):
                self._overrule(report, properties)

    def _overrule(self, report: pytest.TestReport, properties: Mapping[str, object]) -> None:
        self.overruled[report.nodeid] = None
        self._failed.add(report.nodeid)
        report.longrepr = (
            f"{properties['verdict']}: {properties.get('reason', 'no reason is known')}\n"
            f"A conftest.py or another plugin reported this test as {report.outcome}. Its verdict stays."
        )
        report.outcome = "failed"
        if hasattr(report, "wasxfail"):
            del report.wasxfail

    def unanswered(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield the failed tests that another plugin was to call again and did not."""
        for test in self._attempts.keys() - self._failed:
            self.overruled[test] = None
            yield test, dict(self._attempts[test])

    def add_row(self, test: str, properties: Mapping[str, Any]) -> None:
        """Add the verdict of a test; of a test that another plugin calls again, the last one."""
        self.rows[:] = [row for row in self.rows if row.get("test") != test or not self._attempts.get(test)]
        self.rows.append({**properties, "test": test})

    def settle(self, session: pytest.Session) -> None:
        """Set the exit code: a failure of ours counts; with `llmbench_exit_codes = detailed`, by its kind."""
        if session.exitstatus in _GREEN and (self.incomplete or any(self.fails(row["verdict"]) for row in self.rows)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.OK and self.unjudged and self._bench.requires_verdict:
            session.exitstatus = EXIT_CODE
        if self._bench.options.exit_codes == "detailed" and session.exitstatus == 1:
            session.exitstatus = detailed_exit_code(self._decide(1)[0], 1)

    def compare_with(self, failed: Collection[str]) -> None:
        """Note failures that the terminal shows as something else; it shows the tests `failed` as such."""
        ours = (str(row["test"]) for row in self.rows if self.fails(row["verdict"]))
        self.overruled |= dict.fromkeys(test for test in ours if test not in failed)

    def lines(self) -> Iterator[str]:
        """Yield lines for the terminal about tests whose verdict other plugins hide."""
        if self.overruled:
            yield (
                f"llmbench: a conftest.py or another plugin reported {len(self.overruled)} failed tests as something "
                f"else: {', '.join(self.overruled)}. Their verdicts stay, and the session fails"
            )

    def annotations(self) -> Iterator[str]:
        """Yield the annotations of GitHub Actions, if this is one of its jobs."""
        if os.environ.get("GITHUB_ACTIONS") == "true":  #: variable GITHUB_ACTIONS: `true`: failed tests are annotated
            yield from annotate_tests(self.rows, self._config.rootpath, warned=self.warned)

    def write(self, exit_code: int, notes: Sequence[str]) -> None:
        """Write `summary.md`, with further sentences, and, last of all in the session's folder, `verdict.json`.

        A group that the system names may read the folder from then on. Raises OSError if writing a file fails; the
        verdict is then missing.
        """
        folder = self._bench.session.folder
        word, reason = self._decide(1 if exit_code in DETAILED.values() else exit_code)
        verdict = SessionVerdict(
            verdict=word, reason=reason, counts=dict(count_verdicts(self.rows)), exit_code=exit_code,
            unconfirmed=tuple(dict.fromkeys(str(row["run"]) for row in self.rows if row.get("unconfirmed"))),
            session=self._bench.session.id, ended=dt.datetime.now().astimezone().isoformat(timespec="seconds"),
            llmbench_version=__version__, as_recorded=self._bench.settings.as_recorded,
        )  # fmt: skip
        text = "\n".join([*summary(verdict, self.rows, self.records, [*self.lines(), *notes]), ""])
        write_text(folder / layout.SUMMARY, text, mode=0o600)
        #: variable GITHUB_STEP_SUMMARY: file to which the summary is appended
        if step := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(step).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        write_model(folder / layout.VERDICT, verdict)
        self.word = word
        if (group := self._bench.settings.system.group) is not None:
            share(folder, group)

    def withdraw(self) -> None:
        """Take away the reports of an earlier process of this session, which `--resume` goes on with.

        Raises OSError if one cannot be removed.
        """
        folder = self._bench.session.folder
        for name in (layout.VERDICT, layout.VERDICTS, layout.SUMMARY, layout.JUNIT, layout.PAGE):
            (folder / name).unlink(missing_ok=True)

    def _decide(self, exit_code: int) -> tuple[Word, str]:
        return decide(
            self.rows,
            incomplete=[clause.name for clause in self.incomplete],
            unjudged=[run for runs in self.unjudged.values() for run in runs],
            runs=len(self._bench.planned.runs),
            speed_required=bool(self.unjudged) and self._bench.requires_verdict,
            simulated=self._bench.settings.simulate is not None,
            exit_code=exit_code,
            interrupted=self.interrupted,
        )
