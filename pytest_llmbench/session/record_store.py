"""The records of a session's runs and checks: kept for waiting tests, and on disk as evidence."""

import contextlib
import hashlib
import json
import os
import socket
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from pydantic import BaseModel

from pytest_llmbench.cluster.runs import Plan, Session, repeat_key
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Judgement, Problem, Record, RunRecord, Verdict, write_model
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.schema import to_json
from pytest_llmbench.core.wire import layout
from pytest_llmbench.judging.telemetry import first_of, gaps
from pytest_llmbench.session.ending import with_log_to_read
from pytest_llmbench.session.journal.journal import EventKind, Journal, digest_of_record, now
from pytest_llmbench.session.live.snapshot import LiveTask
from pytest_llmbench.session.redaction import Redactor
from pytest_llmbench.session.signing import PytestCommand

AnyRecord = TypeVar("AnyRecord", bound=Record)
# Most records in memory that wait for a verdict: during one long run, thousands of others may end.
_MOST_WAITING = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Facts of a run's record that are needed all the time."""

    recipe: str
    problem: Problem | None
    early: EarlyVerdict | None
    replayed: bool
    cut_short: bool  # its session ended before the run did
    step: int
    gpus: int
    nodes: int
    hosts: str  # the names of its nodes, of many the first
    started: float | None  # Unix time; None if the run ended before its start
    took_s: float
    facts: tuple[tuple[str, str], ...]  # versions, provenance and command

    @property
    def is_sane(self) -> bool:
        """True if the run was made here, and can be judged."""
        return self.problem is None and not self.replayed


class KeptRuns(Mapping[str, RunRecord]):
    """The records of finished runs by key: the latest that wait to be judged are in memory.

    One that was let go is read from its file each time. If the file is gone, or no longer has the digest of the text
    that was written, the record is lost: it leaves the mapping, and `lose` is called with its key, its file and the
    reason.

    Attributes:
        summaries: the facts of each record, also of those that are no longer in memory.
        lock: held while a file is read, and from its replacement until its new digest is kept: a reader in between
            would take the file for changed.
    """

    def __init__(self, lose: Callable[[str, Path, str], None]) -> None:
        self.summaries: dict[str, RunSummary] = {}
        self.lock = threading.RLock()
        self._lose = lose
        self._records: dict[str, RunRecord] = {}
        self._files: dict[str, tuple[str, bytes]] = {}
        self._alike: dict[tuple[str, str], tuple[str, str]] = {}

    def keep(self, record: RunRecord, written: str | None) -> None:
        """Keep a record; only in memory if `written`, the text of its file, is None."""
        with self.lock:
            if written is None:
                self._files.pop(record.key, None)
            else:
                self._files[record.key] = record.folder, hashlib.sha256(written.encode()).digest()
            self._records[record.key] = record
            self.summaries[record.key] = self._summary_of(record)
            if len(self._records) > _MOST_WAITING:
                self.let_go(next((key for key in self._records if key in self._files), record.key))

    def let_go(self, key: str) -> None:
        """Keep a record in its file alone, if it has one."""
        with self.lock:
            if key in self._files:
                self._records.pop(key, None)

    def check_files(self) -> None:
        """Lose every record that was let go and whose file was changed since, so that later readers skip it."""
        with self.lock:
            for key in [key for key in self._files if key not in self._records]:
                self._bytes(key)

    def __getitem__(self, key: str) -> RunRecord:
        with self.lock:
            if (record := self._records.get(key)) is not None:
                return record
            data = self._bytes(key)
        if data is None:
            raise KeyError(key)
        return RunRecord.model_validate_json(data)

    def __contains__(self, key: object) -> bool:
        return key in self.summaries

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.summaries))  # the runner adds to them meanwhile

    def __len__(self) -> int:
        return len(self.summaries)

    def _bytes(self, key: str) -> bytes | None:
        """The content of a record's file; None if the file is gone or was changed."""
        folder, digest = self._files.get(key, ("", b""))
        if not folder:
            return None
        path = Path(folder) / layout.RECORD
        try:
            data = path.read_bytes()
        except OSError as error:
            reason = f"it could not be read ({error.strerror})"
        else:
            if hashlib.sha256(data).digest() == digest:
                return data
            reason = "it was changed"
        del self._files[key], self.summaries[key]
        self._lose(key, path, reason)
        return None

    def _summary_of(self, record: RunRecord) -> RunSummary:
        facts = {**record.versions, **record.provenance}
        # Of a job of its own it names the sbatch script.
        facts |= {"command": record.command} if facts and record.command else {}
        return RunSummary(
            recipe=record.recipe.name, problem=record.problem, early=record.early, replayed=record.replayed is not None,
            cut_short=record.was_cut_short, step=max((step.step for step in record.steps), default=0),
            gpus=record.gpus, nodes=record.nodes, hosts=listed(record.hosts, 2), started=record.timings.started,
            took_s=record.took_s,
            # Thousands of runs have the same versions.
            facts=tuple(self._alike.setdefault(fact, fact) for fact in facts.items()),
        )  # fmt: skip


class RecordStore:
    """The state of a session for its readers, whether it runs or is replayed.

    Attributes:
        tasks: the state of every unfinished run, by key; replaced whole, so readers can do without a lock.
        checking: true while the checks are under way.
        unfit: nodes that checks found unfit, and why.
        notes: lines for people, oldest first; the reader that shows them removes them.
        verdicts: those of the tests that are over, by node id.
        unwritten: files of evidence whose writing failed.
        lost: the reason why the record of a judged run is lost, by key.
        unsaved: the reason why the record of a run or check could not be kept, by key or name.
        runs, checks: the final records, by key and by name; those of checks without their evidence.
        left_over: nodes that are too few for a group.
        command: the command line with which records are signed; None where they are not.
    """

    def __init__(self, system: System, journal: Journal | None = None) -> None:
        self.tasks: Mapping[str, LiveTask] = {}
        self.checking = False
        self.unfit: dict[str, str] = {}
        self.notes: deque[str] = deque()
        self.verdicts: dict[str, Verdict] = {}
        self.unwritten: list[Path] = []
        self.left_over: tuple[str, ...] = ()
        self.command: PytestCommand | None = None
        self._redactor = Redactor(system)
        self._journal = journal
        self.lost: dict[str, str] = {}
        self.runs = KeptRuns(self._lose)
        self.checks: dict[str, HealthRecord] = {}
        self._evidence: dict[str, bytes] = {}  # of checks by name, as compressed JSON
        self._judged: set[str] = set()
        self._added: dict[tuple[str, str], int] = {}
        self._changed = threading.Condition()
        self.unsaved: dict[str, str] = {}

    def wait(self, kind: type[AnyRecord], name: str, timeout_s: float) -> AnyRecord | None:
        """Wait for the record of a run or a check; None when it is not there within `timeout_s`.

        Raises ConfigError if its file was changed or removed, or it could not be kept.
        """
        records = cast("Mapping[str, AnyRecord]", self.runs if kind is RunRecord else self.checks)
        with self._changed:
            there = (records, self.lost, self.unsaved)
            self._changed.wait_for(lambda: any(name in names for names in there), timeout_s)
        record = records.get(name)
        if record is None and (reason := self.lost.get(name) or self.unsaved.get(name)):
            raise ConfigError(reason)
        return record

    def add_judgements(self, judgements: Mapping[tuple[str, str], Sequence[Judgement]]) -> None:
        """Write the verdicts of tests into the records of a run or check, by `run` or `check` and its name."""
        for (about, name), verdicts in judgements.items():
            added = hash(tuple(verdicts))
            if self._added.get((about, name)) == added:
                continue
            record = self.runs.get(name) if about == "run" else self.whole_check(name)
            if record is not None:
                self._added[about, name] = added
                judged = record.model_copy(update={"judgements": tuple(verdicts)})
                with self.runs.lock:
                    self._keep_written(judged, self.write(judged.path, judged))

    def let_go(self, series: str) -> None:
        """Keep the records of a judged series, whose tests are over, in their files alone."""
        self._judged.add(series)
        number = 1
        while (key := repeat_key(series, number)) in self.runs:
            self.runs.let_go(key)
            number += 1

    def keep(self, record: Record) -> None:
        """Make a record final, and wake the tests that wait for it, also if it cannot be kept."""
        try:
            self._make_final(record)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that waits has to hear of it
            what = f"the record of {record.name} could not be kept: {type(error).__name__}: {error}"
            self.unsaved[record.name] = what
            self.notes.append(what)
        with self._changed:
            self._changed.notify_all()

    def _make_final(self, record: Record) -> None:
        record = self._redactor.clean(with_log_to_read(record) if isinstance(record, RunRecord) else record)
        if self.command is not None and record.made_by is None:
            record = record.model_copy(update={"made_by": self.command.sign(record, self._redactor.words)})
        if isinstance(record, RunRecord) and record.as_recorded is not None:
            self.notes.append(f"run {record.key} is {record.as_recorded}")
        if isinstance(record, RunRecord) and record.problem is None:
            if record.unreadable:
                unread = first_of(record.unreadable)
                self.notes.append(f"run {record.key} is judged without what could not be read: {unread}")
            if unknown := gaps(record.telemetry, record.gpus):
                self.notes.append(f"run {record.key} is judged without some of its telemetry: {first_of(unknown)}")
        digest = digest_of_record(record)
        with self.runs.lock:
            written = self.write(record.path, record)
            self.note("finished", name=record.name, record=digest)
            self._keep_written(record, written)

    def keep_attempt(self, path: Path, record: RunRecord) -> None:
        """Write the record of an attempt at a run that another one follows."""
        self.write(path, self._redactor.clean(record))

    def note_begin(self, settings: Settings, session: Session, command: PytestCommand) -> None:
        """Note that this process takes the session on."""
        self.note(
            "began", host=socket.gethostname(), pid=os.getpid(), cluster=settings.cluster, session=session.id,
            ttl_s=settings.heartbeat_timeout, tests=tuple(test.test for test in command.tests),
            command=self._redactor.words(command.words),
        )  # fmt: skip

    def note_end(self, planned: Plan) -> None:
        """Note the end, if every run and check was finished, and none was cut short."""
        runs = map(self.runs.summaries.get, (run.key for run in planned.runs))
        checks = map(self.checks.get, planned.checks)
        whole = all(run is not None and not run.cut_short for run in runs)
        if whole and all(check is not None and not check.was_cut_short for check in checks):
            self.note("ended")

    def note(self, event: EventKind, *, sync: bool = True, **facts: object) -> None:
        """Write an event into the journal; a full disk is a note for people: `--resume` would repeat runs."""
        if self._journal is None:
            return
        try:
            self._journal.note(now(event, **facts), sync=sync)
        except OSError as error:
            if self._journal.path not in self.unwritten:
                self.unwritten.append(self._journal.path)
                self.notes.append(f"{self._journal.path} could not be written: {error}; --resume would repeat runs")

    def write(self, path: Path, model: BaseModel) -> str | None:
        """Write evidence, and return its text; None with a warning if the disk is full: verdicts stay the same."""
        try:
            return write_model(path, model)
        except OSError as error:
            self.unwritten.append(path)
            self.notes.append(f"{path} could not be written: {error}")
            return None

    def _keep_written(self, record: Record, written: str | None) -> None:
        if isinstance(record, HealthRecord):
            # Of a thousand nodes, evidence is hundreds of megabytes of objects, and a few of text that is compressed.
            self._evidence[record.check] = zlib.compress(to_json(record.report, include={"evidence"}).encode())
            self.checks[record.check] = record.without_evidence()
        elif isinstance(record, RunRecord):
            self.runs.keep(record, written)
            if record.series in self._judged:
                self.runs.let_go(record.key)

    def whole_check(self, name: str) -> HealthRecord:
        """The final record of a check with its evidence (KeyError: it is not there)."""
        slim, evidence = self.checks[name], json.loads(zlib.decompress(self._evidence[name]))
        return slim.model_copy(update={"report": slim.report.model_copy(update=evidence)})

    def _lose(self, key: str, path: Path, reason: str) -> None:
        with contextlib.suppress(OSError):  # most often it is gone
            path.replace(path.with_name(layout.ALTERED))
        self.lost[key] = f"the record of run {key} is lost: {path}: {reason} after the run was judged"
        self.notes.append(self.lost[key])
