"""The records of a session's runs and checks: kept for waiting tests, and on disk as evidence."""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from pydantic import BaseModel

from pytest_llmbench.cluster.runs import Plan, Session, repeat_key
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, Record, RunRecord, Verdict, write_model
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.telemetry import first_of, gaps
from pytest_llmbench.session.active import RunView
from pytest_llmbench.session.border import Border
from pytest_llmbench.session.ending.logs import with_log_to_read
from pytest_llmbench.session.journal.journal import EventKind, Journal, now
from pytest_llmbench.session.journal.plans import digest_of_record
from pytest_llmbench.session.kept_runs import KeptRuns
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
        lost: records whose file was changed or taken away after the run was judged, and why, by key.
        runs: the records of finished runs by key; one is here as soon as it is final.
        checks: the records of finished checks by name, likewise.
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
        self.lost: dict[str, str] = {}
        self.runs = KeptRuns(self._lose)
        self.checks: dict[str, HealthRecord] = {}
        self._judged: set[str] = set()
        self._added: dict[tuple[str, str], int] = {}
        self._changed = threading.Condition()

    def wait(self, kind: type[AnyRecord], name: str, timeout_s: float) -> AnyRecord | None:
        """Wait for the record of a run or a check; None when it is not there within `timeout_s`.

        Raises:
            ConfigError: it was there, and its file is no longer the one that was written.
        """
        records = cast("Mapping[str, AnyRecord]", self.runs if kind is RunRecord else self.checks)
        with self._changed:
            self._changed.wait_for(lambda: name in records or name in self.lost, timeout_s)
        found = records.get(name)
        if found is None and name in self.lost:
            raise ConfigError(self.lost[name])
        return found

    def add_judgements(self, found: Mapping[tuple[str, str], Sequence[Judgement]]) -> None:
        """Write the verdicts of tests into the records that they are about: `run` or `check`, and its name.

        A record that has these verdicts stays as it is.
        """
        for (about, name), verdicts in found.items():
            told = hash(tuple(verdicts))
            if self._added.get((about, name)) == told:
                continue
            record = self.runs.get(name) if about == "run" else self.checks[name]
            if record is not None:  # lost, which is told
                self._added[about, name] = told
                self._keep(record.model_copy(update={"judgements": tuple(verdicts)}))

    def let_go(self, series: str) -> None:
        """Keep the records of runs that are judged, and that no test waits for any more, in their files alone."""
        self._judged.add(series)
        number = 1
        while (key := repeat_key(series, number)) in self.runs:
            self.runs.let_go(key)
            number += 1

    def check_files(self) -> None:
        """See that the records that were let go are still what was written; put aside what is not.

        No later reader of the session's folder may take another text for the evidence behind a verdict.
        """
        self.runs.check()

    def keep(self, record: Record) -> None:
        """Make a record final, and wake the tests that wait for it."""
        record = self._border.crossed(with_log_to_read(record) if isinstance(record, RunRecord) else record)
        if self.command is not None and record.made_by is None:
            record = record.model_copy(update={"made_by": self.command.sign(record, self._border.words)})
        if isinstance(record, RunRecord) and record.problem is None:
            self._note_gaps(record)
        digest = digest_of_record(record)
        with self.runs.lock:
            written = self.write(record.path, record)
            self.note("finished", name=record.name, record=digest)
            self._keep_written(record, written)
        with self._changed:
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
        runs = map(self.runs.glances.get, (run.key for run in planned.runs))
        checks = map(self.checks.get, planned.checks)
        whole = all(run is not None and not run.cut_short for run in runs)
        if whole and all(check is not None and not check.was_cut_short for check in checks):
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

    def write(self, path: Path, model: BaseModel) -> str | None:
        """Write evidence, and return its text. A full disk costs the file, produces a warning, and changes no verdict.

        None is returned then.
        """
        try:
            return write_model(path, model)
        except OSError as error:
            self.unwritten.append(path)
            self.notes.append(f"{path} could not be written: {error}")
            return None

    def _keep(self, record: Record) -> None:
        with self.runs.lock:
            self._keep_written(record, self.write(record.path, record))

    def _keep_written(self, record: Record, written: str | None) -> None:
        if isinstance(record, HealthRecord):
            self.checks[record.check] = record
        elif isinstance(record, RunRecord):
            self.runs.keep(record, written)
            if record.series in self._judged:
                self.runs.let_go(record.key)

    def _lose(self, key: str, path: Path, why: str) -> None:
        """Tell that the record of a run is not what was written, and keep it from whatever reads the folder later."""
        with contextlib.suppress(OSError):  # most often it is gone
            path.replace(path.with_name(layout.ALTERED))
        self.lost[key] = f"the record of run {key} is lost: {path}: {why} after the run was judged"
        self.notes.append(self.lost[key])

    def _note_gaps(self, record: RunRecord) -> None:
        if record.unreadable:
            unread = first_of(record.unreadable)
            self.notes.append(f"run {record.key} is judged without what could not be read: {unread}")
        if unknown := gaps(record.telemetry, record.gpus):
            self.notes.append(f"run {record.key} is judged without some of its telemetry: {first_of(unknown)}")
