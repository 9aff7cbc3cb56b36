"""The records of a session's runs and checks: in memory for waiting tests, on disk as evidence."""

import os
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from pytest_llmbench.cluster.runs import Plan, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, Record, RunRecord, Verdict, write_model
from pytest_llmbench.judging.telemetry import first_of, gaps
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.border import Border
from pytest_llmbench.session.ending.logs import with_log_to_read
from pytest_llmbench.session.journal.journal import EventKind, Journal, now
from pytest_llmbench.session.journal.plans import digest_of_record
from pytest_llmbench.session.signing import PytestCommand

AnyRecord = TypeVar("AnyRecord", bound=Record)


class RecordStore:
    """The state of a session for its readers, whether it runs or is replayed.

    Attributes:
        views: how every unfinished run stands; replaced whole, so that readers need no lock.
        unfit: nodes that checks found unfit, and why.
        notes: lines for people, oldest first; the reader that shows them removes them.
        verdicts: those of the tests that are over, by node id.
        unwritten: files of evidence that could not be written.
        left_over: nodes that the session had and that are in no group, because they are too few for one.
        command: the command line with which records are signed; None where they are not.
    """

    def __init__(self, system: System, journal: Journal | None = None) -> None:
        self.views: tuple[RunView, ...] = ()
        self.unfit: dict[str, str] = {}
        self.notes: deque[str] = deque()
        self.verdicts: dict[str, Verdict] = {}
        self.unwritten: list[Path] = []
        self.left_over: tuple[str, ...] = ()
        self.command: PytestCommand | None = None
        self._border = Border(system)
        self._journal = journal
        self._records: dict[tuple[str, str], Record] = {}
        self._changed = threading.Condition()

    @property
    def runs(self) -> dict[str, RunRecord]:
        """Finished runs by key; a record is here as soon as it is final."""
        return self._all(RunRecord)

    @property
    def checks(self) -> dict[str, HealthRecord]:
        """Finished checks by name, likewise."""
        return self._all(HealthRecord)

    def wait(self, kind: type[AnyRecord], name: str, timeout_s: float) -> AnyRecord | None:
        """Wait for the record of a run or a check; None when it is not there within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: (kind.about, name) in self._records, timeout_s)
            return self._all(kind).get(name)

    def add_judgements(self, found: Mapping[tuple[str, str], Sequence[Judgement]]) -> None:
        """Write the verdicts of tests into the records that they are about: `run` or `check`, and its name."""
        for about, verdicts in found.items():
            record = self._records[about].model_copy(update={"judgements": tuple(verdicts)})
            self._records[about] = record
            self.write(record.path, record)

    def keep(self, record: Record) -> None:
        """Make a record final, and wake the tests that wait for it."""
        record = self._border.crossed(with_log_to_read(record) if isinstance(record, RunRecord) else record)
        if self.command is not None and record.made_by is None:
            record = record.model_copy(update={"made_by": self.command.sign(record, self._border.words)})
        self.write(record.path, record)
        if isinstance(record, RunRecord) and record.problem is None:
            self._note_gaps(record)
        self.note("finished", name=record.name, record=digest_of_record(record))
        with self._changed:
            self._records[record.about, record.name] = record
            self._changed.notify_all()

    def keep_attempt(self, path: Path, record: RunRecord) -> None:
        """Write the record of an attempt at a run that another one follows; no test waits for it."""
        self.write(path, self._border.crossed(record))

    def note_begin(self, settings: Settings, session: Session, command: PytestCommand) -> None:
        """Note that this process takes the session on."""
        self.note(
            "began", host=socket.gethostname(), pid=os.getpid(), cluster=settings.cluster, session=session.id,
            ttl_s=settings.heartbeat_timeout, tests=tuple(test.test for test in command.tests),
            command=self._border.words(command.words),
        )  # fmt: skip

    def note_end(self, planned: Plan) -> None:
        """Note the end, if every run and check has its record, and none because the session ended before it."""
        records = [*map(self.runs.get, (run.key for run in planned.runs)), *map(self.checks.get, planned.checks)]
        if all(record is not None and not record.was_cut_short for record in records):
            self.note("ended")

    def note(self, event: EventKind, *, sync: bool = True, **facts: object) -> None:
        """Write an event into the journal. A full disk costs what `--resume` would know of it, and no verdict."""
        if self._journal is None:
            return
        try:
            self._journal.note(now(event, **facts), sync=sync)
        except OSError as error:
            if self._journal.path not in self.unwritten:
                self.unwritten.append(self._journal.path)
                self.notes.append(f"{self._journal.path} could not be written: {error}; --resume would repeat runs")

    def write(self, path: Path, model: BaseModel) -> None:
        """Write evidence. A full disk costs the file, produces a warning, and changes no verdict."""
        try:
            write_model(path, model)
        except OSError as error:
            self.unwritten.append(path)
            self.notes.append(f"{path} could not be written: {error}")

    def _all(self, kind: type[AnyRecord]) -> dict[str, AnyRecord]:
        return {name: record for (_, name), record in list(self._records.items()) if isinstance(record, kind)}

    def _note_gaps(self, record: RunRecord) -> None:
        if record.unreadable:
            unread = first_of(record.unreadable)
            self.notes.append(f"run {record.key} is judged without what could not be read: {unread}")
        if unknown := gaps(record.telemetry, record.gpus):
            self.notes.append(f"run {record.key} is judged without some of its telemetry: {first_of(unknown)}")
