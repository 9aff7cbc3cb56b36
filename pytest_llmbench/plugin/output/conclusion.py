"""The conclusion of a session: its verdict in one word, its exit code, and the files that CI systems read."""

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.records import Verdict, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.verdict.requirements import ClauseVerdict
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.reporting.ci import annotate_tests, summary
from pytest_llmbench.reporting.verdict import (
    DETAILED,
    SessionOutcome,
    SessionVerdict,
    Word,
    count_verdicts,
    decide,
    detailed_exit_code,
)

_GREEN = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, EXIT_CODE}


class Conclusion:
    """Concludes from all verdicts of a session.

    Attributes:
        rows: the properties of each verdict.
        clauses: how each required clause ended.
        unjudged: runs without a verdict on their speed, by the reason.
        overruled: tests whose failure something else reported as passed.
        notes: further sentences for the summary.
    """

    def __init__(self, config: pytest.Config, bench: Bench) -> None:
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.clauses: Sequence[ClauseVerdict] = ()
        self.unjudged: Mapping[str, Sequence[str]] = {}
        self.overruled: Sequence[str] = ()
        self.notes: Sequence[str] = ()
        self._config = config
        self._bench = bench

    @property
    def records(self) -> str:
        """Path of the session's folder for readers on other machines: as seen from where pytest was started."""
        return records_of(self._config, self._bench.session.folder)

    @property
    def warned(self) -> bool:
        """Whether a test that is INCONCLUSIVE only warns."""
        return self._bench.options.inconclusive == "warn"

    def settle(self, session: pytest.Session) -> None:
        """Set the exit code: a failure of ours counts; with `llmbench_exit_codes = detailed`, by its kind."""
        failed = any(fails(row["verdict"], warned=self.warned) for row in self.rows)
        if failed and session.exitstatus in _GREEN:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._bench.options.exit_codes == "detailed" and session.exitstatus == 1:
            word, _ = self._decide(1)
            session.exitstatus = detailed_exit_code(word, 1)

    def compare_with(self, failed: Collection[str]) -> None:
        """Note failures of ours that the terminal shows as something else.

        Args:
            failed: tests that it shows as failed.
        """
        ours = [str(row["test"]) for row in self.rows if fails(row["verdict"], warned=self.warned)]
        self.overruled = list(dict.fromkeys([*self.overruled, *(test for test in ours if test not in failed)]))

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

    def write(self, exit_code: int) -> None:
        """Write `summary.md` and, last of all in the session's folder, `verdict.json`.

        Raises:
            OSError: writing a file failed; the verdict is missing then.
        """
        folder = self._bench.session.folder
        word, reason = self._decide(_plain(exit_code))
        verdict = SessionVerdict(
            verdict=word, reason=reason, counts=dict(count_verdicts(self.rows)), exit_code=exit_code,
            session=self._bench.session.id, ended=dt.datetime.now().astimezone().isoformat(timespec="seconds"),
            llmbench_version=__version__,
        )  # fmt: skip
        text = "\n".join([*summary(verdict, self.rows, self.records, [*self.lines(), *self.notes]), ""])
        write_text(folder / layout.SUMMARY, text, mode=0o600)
        #: variable GITHUB_STEP_SUMMARY: file to which the summary is appended
        if step := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(step).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        write_model(folder / layout.VERDICT, verdict)

    def withdraw(self) -> None:
        """Take away the reports of an earlier process of this session, which `--resume` goes on with.

        Raises:
            OSError: removing one failed.
        """
        folder = self._bench.session.folder
        for name in (layout.VERDICT, layout.VERDICTS, layout.SUMMARY, layout.JUNIT, layout.PAGE):
            (folder / name).unlink(missing_ok=True)

    def _decide(self, exit_code: int) -> tuple[Word, str]:
        session = SessionOutcome(
            rows=self.rows,
            incomplete=[ended.clause.name for ended in self.clauses if ended.verdict is Verdict.INCOMPLETE],
            unjudged=[run for runs in self.unjudged.values() for run in runs],
            runs=len(self._bench.planned.runs),
            speed_required=bool(self.unjudged) and self._bench.requires_verdict,
            simulated=self._bench.settings.simulate is not None,
            exit_code=exit_code,
        )
        return decide(session)


def records_of(config: pytest.Config, folder: Path) -> str:
    """A session's folder as readers on other machines find it: from where pytest was started, else by its name."""
    started, path = config.invocation_params.dir.resolve(), folder.resolve()
    return path.relative_to(started).as_posix() if path.is_relative_to(started) else path.name


def _plain(exit_code: int) -> int:
    """The exit code of pytest that a detailed one stands for."""
    return 1 if exit_code in DETAILED.values() else exit_code


_FAILING = {str(Verdict.FAIL), str(Verdict.ERROR), str(Verdict.INCONCLUSIVE)}


def fails(verdict: object, *, warned: bool) -> bool:
    """Whether a test with this verdict fails; with `warned`, an INCONCLUSIVE one passes."""
    return str(verdict) in _FAILING and not (warned and verdict == Verdict.INCONCLUSIVE)


class Overruled:
    """Compares the reports of tests with their verdicts.

    A verdict is in the properties of a report as soon as it is decided, before hooks of others see the report. A test
    that is expected to fail, by pytest's marker or by `xfail` of its reference, has another verdict.

    Attributes:
        tests: node ids of tests whose failure came as something else.
    """

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}
        self._failed: set[str] = set()

    def correct(self, report: pytest.TestReport, warned: Callable[[], bool]) -> None:
        """Make a report a failure again whose verdict is one, unless its test has failed already.

        Args:
            report: of any test and phase.
            warned: whether INCONCLUSIVE only warns; called only about a test of ours.
        """
        if report.failed:
            self._failed.add(report.nodeid)
            return
        properties = dict(report.user_properties)
        if report.nodeid in self._failed or str(properties.get("verdict")) not in _FAILING:
            return
        if not fails(properties["verdict"], warned=warned()):
            return
        was = report.outcome
        self.tests[report.nodeid] = None
        self._failed.add(report.nodeid)
        report.outcome = "failed"
        report.longrepr = (
            f"{properties['verdict']}: {properties.get('reason', 'no reason is known')}\n"
            f"A conftest.py or another plugin reported this test as {was}. Its verdict stays."
        )
        if hasattr(report, "wasxfail"):
            del report.wasxfail
