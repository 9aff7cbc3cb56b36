"""`--history`: the comparison with earlier runs, and the import at the end of a session."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.wire import layout
from pytest_llmbench.history.baselines import check_wanted, compare_with_baseline
from pytest_llmbench.history.compare import Compared
from pytest_llmbench.history.database import open_history
from pytest_llmbench.history.importing import About, import_sessions
from pytest_llmbench.history.wanted import Wanted
from pytest_llmbench.judging.interval.decide import RULE
from pytest_llmbench.plugin.options import Options, options_of
from pytest_llmbench.plugin.output.reports import Reported
from pytest_llmbench.plugin.verdict.facts import facts_of_run
from pytest_llmbench.session.folder import record_files
from pytest_llmbench.session.record_store import RecordStore

_GIT_S = 10.0


def check_history(options: Options) -> None:
    """Check that the history has what `--llmbench-compare-to` needs.

    Raises ConfigError if the history is missing or unreadable, or it lacks the tag or the commit.
    """
    place, wanted = options.history, options.compare_to
    if place is None:
        if wanted is not None:
            raise ConfigError("--llmbench-compare-to needs a history: name one with --llmbench-history")
        return
    history = open_history(place)
    if wanted is not None:
        check_wanted(history, wanted)


def compare_with_history(
    place: Path | str, session: str, runs: Iterable[RunSpec], records: Mapping[str, RunRecord], wanted: Wanted
) -> Iterator[dict[str, Any]]:
    """Yield the properties of a verdict on each run, or on the runs that are judged together; the test under `test`.

    Raises ConfigError if the history is unreadable.
    """
    series: dict[str, list[RunRecord]] = {}
    for run in runs:
        if (record := records.get(run.key)) is not None:
            series.setdefault(run.series, []).append(record)
    if not series:
        return
    lines = compare_with_baseline(open_history(place), session, [*series.values()], wanted)
    for compared, of_series in zip(lines, series.values(), strict=True):
        yield _make_row(compared, of_series, wanted)


def _make_row(compared: Compared, records: list[RunRecord], wanted: Wanted) -> dict[str, Any]:
    row: dict[str, Any] = {
        "test": f"history::{compared.name}", **facts_of_run(records[0], len(records)), "findings": "",
        "statistic": compared.metric, "verdict": str(compared.verdict),
    }  # fmt: skip
    if compared.reason:
        row["reason"] = compared.reason
    change = compared.change
    if change is None:
        return row | {"threshold": f"no worse than {wanted}"}
    row |= {
        "threshold": f"no worse than {Quantity(change.before, change.unit).plain}",
        "value": change.after, "unit": change.unit, "claim": "system", "alpha": change.alpha,
        "baseline": ",".join(compared.sessions), "change": 100 * change.share,
    }  # fmt: skip
    if change.low is None or change.high is None:
        return row
    return row | {
        "change_low": 100 * change.low, "change_high": 100 * change.high, "judged_by": "interval",
        "interval_rule": RULE,
    }  # fmt: skip


def keep(config: pytest.Config, session: Session, record_store: RecordStore) -> Reported | None:
    """Import the records of a session that is over into the history; None without `--llmbench-history`."""
    place = options_of(config).history
    if place is None:
        return None
    try:
        history = open_history(place)
        about = About(version=__version__, git_commit=_commit(config.rootpath))
        imported = import_sessions(history, [session.folder], about)
    except (ConfigError, OSError) as error:
        return Reported(name="history", failure=f"the session is not in the history: {error}")
    written = {(kind, path.parent.name) for kind in layout.FOLDERS for path in record_files(session.folder, kind)}
    made = {("run", key) for key in (*record_store.runs, *record_store.lost)} | {
        ("check", name) for name in record_store.checks
    }
    missing = [f"{session.folder}: the record of {about} {name} is not there" for about, name in sorted(made - written)]
    if wrong := [*imported.refused, *missing]:
        return Reported(name="history", failure=f"the history {history.shown} lacks records: {'; '.join(wrong)}")
    return Reported(name="history", lines=(f"in the history {history.shown}: {imported}",))


def _commit(folder: Path) -> str | None:
    """The commit of the checkout that has the tests; None without a checkout or git."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
