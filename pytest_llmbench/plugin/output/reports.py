"""Reports: of packages, of conftest files and plugins, and ours. If one fails, verdicts and other reports stay."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.statistics import judged_steps
from pytest_llmbench.plugin.options import options_of
from pytest_llmbench.reporting.base import REPORTS, FinishedSession
from pytest_llmbench.session.folder import read_folder

_HOOK = "pytest_llmbench_session_report"
_PAGE = "html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """One report by its name, or that of its plugin: its lines for the terminal, or the reason why it failed."""

    name: str
    lines: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def is_page(self) -> bool:
        """True if it is the page for people, of which the terminal has one line."""
        return self.name == _PAGE and self.failure is None


def make_reports(session: FinishedSession, config: pytest.Config) -> list[Reported]:
    """Make every report there is; one that fails leaves verdicts and other reports alone."""
    made = []
    for name, write in _report_writers(session, config):
        try:
            made.append(Reported(name=name, lines=tuple(map(str, write() or ()))))
        except Exception as error:  # noqa: BLE001 - reports of other packages may raise anything
            made.append(
                Reported(name=name, failure=f"report {name} could not be made: {type(error).__name__}: {error}")
            )
    return made


def pytest_llmbench_session_report(session: FinishedSession, config: pytest.Config) -> None:
    """Hand the judged steps to pytest-benchmark, where it writes or compares anything."""
    theirs = getattr(config, "_benchmarksession", None)
    # Its table of step times is only for users who asked pytest-benchmark for something.
    if theirs is not None and any((theirs.json, theirs.save, theirs.autosave, theirs.compare)):
        for record in session.runs.values():
            if record.problem is None:
                theirs.benchmarks.append(_benchmark_of(record))


def _benchmark_of(record: RunRecord) -> Any:
    """The judged steps of a run as a benchmark, each a round of one iteration.

    It is pytest-benchmark's internal `Metadata`, the only way to add a measurement that was made elsewhere.
    """
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - an optional plugin

    fixture = SimpleNamespace(
        name=record.key,
        fullname=f"llmbench::{record.key}",
        group=f"{record.system}, nodes {record.nodes}, scale {record.recipe.scale}",
        param=record.key,
        params={"recipe": record.recipe.name},
        extra_info={name: f"{metric.quantity}" for name, metric in record.metrics.items()}
        | {"hosts": ",".join(record.hosts), "job_id": record.job_id, "run_record": str(record.path)},
        cprofile_stats=None,
        has_error=False,
    )
    benchmark = Metadata(fixture, 1, {"min_rounds": record.recipe.steps - record.recipe.warm_up.steps})
    for step in judged_steps(record.recipe, record.steps):
        if step.seconds is not None:
            benchmark.stats.update(step.seconds)
    return benchmark


def _report_writers(
    session: FinishedSession, config: pytest.Config
) -> Iterator[tuple[str, Callable[[], Iterable[str] | None]]]:
    if options_of(config).report == "yes":
        yield _PAGE, partial(_write_page, session, options_of(config).history)
    for name, write in REPORTS.usable().items():
        yield name, partial(write, session)
    manager = config.pluginmanager
    plugins = [(name, plugin) for name, plugin in manager.list_name_plugin() if hasattr(plugin, _HOOK)]
    for name, plugin in plugins:
        call = manager.subset_hook_caller(_HOOK, [other for _, other in plugins if other is not plugin])
        yield name, partial(_call_hook, call, session, config)


def _write_page(session: FinishedSession, history: Path | str | None) -> None:
    from pytest_llmbench.reporting.html.page import write_page  # noqa: PLC0415 - costs sessions that have one alone

    write_page(read_folder(session.folder), session.folder / layout.PAGE, history)


def _call_hook(
    call: Callable[..., Iterable[Iterable[str] | None]], session: FinishedSession, config: pytest.Config
) -> Iterator[str]:
    for lines in call(session=session, config=config):
        yield from lines or ()
