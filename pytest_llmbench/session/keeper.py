"""Storage of the records of a session's runs: in memory for waiting tests, on disk as evidence."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, RunRecord, write_model
from pytest_llmbench.judging.telemetry import first_of, gaps
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.border import Border
from pytest_llmbench.session.ending.logs import with_log_to_read


class Keeper:
    """The records of a session's runs, whether they are run or replayed.

    Attributes:
        records: finished runs by key; a record is here as soon as it is final.
        checks: finished checks by name, likewise.
        unfit: nodes that checks found unfit, and why.
        notes: lines for people, oldest first; the reader that shows them removes them.
        unwritten: files of evidence that could not be written.
        left_over: nodes that the session had and that are in no group, because they are too few for one.
    """

    def __init__(self, system: System) -> None:
        self._border = Border(system)
        self.records: dict[str, RunRecord] = {}
        self.checks: dict[str, HealthRecord] = {}
        self.unfit: dict[str, str] = {}
        self.notes: deque[str] = deque()
        self.unwritten: list[Path] = []
        self.left_over: tuple[str, ...] = ()
        self._changed = threading.Condition()

    @property
    def views(self) -> tuple[RunView, ...]:
        """How every unfinished run stands."""
        return ()

    def begin_no_more(self) -> None:
        """Begin nothing that has not begun, and return at once: `stop` follows."""

    def stop(self, say: Callable[[str], None] | None = None) -> None:
        """End what is not finished. Safe to call twice.

        Args:
            say: told what is waited for, where that takes longer than a moment.
        """

    def wait(self, key: str, timeout_s: float) -> RunRecord | None:
        """Wait for a run's record; None when it is not there within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: key in self.records, timeout_s)
            return self.records.get(key)

    def wait_check(self, name: str, timeout_s: float) -> HealthRecord | None:
        """Wait for a check's record; None when it is not there within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: name in self.checks, timeout_s)
            return self.checks.get(name)

    def add_judgements(
        self, runs: Mapping[str, Sequence[Judgement]], checks: Mapping[str, Sequence[Judgement]]
    ) -> None:
        """Write the verdicts of tests into the records of the runs and checks they are about."""
        for key, verdicts in runs.items():
            record = self.records[key].model_copy(update={"judgements": tuple(verdicts)})
            self.records[key] = record
            self.write(record.path, record)
        for name, verdicts in checks.items():
            health = self.checks[name].model_copy(update={"judgements": tuple(verdicts)})
            self.checks[name] = health
            self.write(health.path, health)

    def keep_check(self, record: HealthRecord) -> None:
        """Make a check's record final, and wake the tests that wait for it."""
        record = self._border.check(record)
        self.write(record.path, record)
        with self._changed:
            self.checks[record.check] = record
            self._changed.notify_all()

    def keep(self, record: RunRecord) -> None:
        """Make a record final, and wake the tests that wait for it."""
        record = self._border.run(with_log_to_read(record))
        self.write(record.path, record)
        if record.problem is None and record.unreadable:
            unread = first_of(record.unreadable)
            self.notes.append(f"run {record.key} is judged without what could not be read: {unread}")
        if record.problem is None and (unknown := gaps(record.telemetry, record.gpus)):
            self.notes.append(f"run {record.key} is judged without some of its telemetry: {first_of(unknown)}")
        with self._changed:
            self.records[record.key] = record
            self._changed.notify_all()

    def write(self, path: Path, model: BaseModel) -> None:
        """Write evidence. A full disk costs the file, produces a warning, and changes no verdict."""
        try:
            write_model(path, model)
        except OSError as error:
            self.unwritten.append(path)
            self.notes.append(f"{path} could not be written: {error}")
