"""The report protocol: the finished session that a report gets, and the registry of reports by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pytest_llmbench.cluster.runs import Plan
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import Extensions
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.session.folder import read_folder, read_plan
from pytest_llmbench.session.law import Law
from pytest_llmbench.session.refusals import refusals, without_refused


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedSession:
    """A session after its last verdict."""

    id: str
    folder: Path  # folder of its records and logs, in which a report may write
    planned: Plan  # the tasks that its tests waited for
    runs: Mapping[str, RunRecord]  # the records of its runs by key, each with the verdicts of its tests
    checks: Mapping[str, HealthRecord]  # the records of its checks by name


def read_finished(folder: Path, law: Law | None = None) -> FinishedSession:
    """Read a session's plan and records.

    Raises ConfigError unless the folder is a session's, whose records are whole, follow the `law`, and agree with its
    other files.
    """
    planned, read = read_plan(folder), without_refused(read_folder(folder), law or Law())
    if refused := refusals(read):
        raise ConfigError("\n".join(refused))
    return FinishedSession(id=read.id, folder=folder, planned=planned, runs=read.runs, checks=read.checks)


# A report writes its files into the session's folder, and returns lines for the terminal, if any.
ReportWriter = Callable[[FinishedSession], Iterable[str] | None]


def _accept(_: str, thing: object) -> ReportWriter:
    if not callable(thing):
        raise ConfigError("it is not a function of a `FinishedSession`")
    return cast("ReportWriter", thing)


REPORTS: Extensions[ReportWriter] = Extensions("report", "reports", _accept)
