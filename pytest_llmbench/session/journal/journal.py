"""The journal of a session: a line for each intention and event, written to disk before it is acted on.

A line is the CRC-32 of a JSON object, a blank, and the object. It is appended in one write and synced. Only the last
line can be torn, by a crash in the middle of that write: it lacks its end, and its event was only planned. Any
other line that does not check was damaged later, and no conclusion is drawn from such a journal.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self

from pydantic import TypeAdapter, ValidationError

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, make_folder, read_regular
from pytest_llmbench.core.record.records import Record
from pytest_llmbench.core.schema import Strict, to_json

_PLAIN: TypeAdapter[object] = TypeAdapter(object)
EventKind = Literal["began", "submitting", "submitted", "finished", "judged", "ended"]


class JournalEvent(Strict):
    """One line of a journal. It is free of secrets."""

    event: EventKind
    """`began`: a process took the session on, its first or, after `--resume`, a later one; `submitting`: a run or a job
    is about to be submitted, and its nodes are lent; `submitted`: with this id; `finished`: a record is on disk;
    `judged`: a test has its verdict; `ended`: all have, and nothing is left to resume.
    """
    at: float
    """Unix time."""
    name: str = ""
    """Name of the run, check or test, or `allocation` for the job that holds nodes."""
    host: str = ""
    """Host of the process that `began`."""
    pid: int = 0
    """Process id of the process that `began`."""
    session: str = ""
    """Session id, which differs from its folder's with `--llmbench-session-name`."""
    cluster: str = ""
    """`--cluster` of the process that `began`."""
    ttl_s: float = 0.0
    """Seconds of silence of the process that `began` after which its jobs end themselves."""
    command: tuple[str, ...] = ()
    """Command line of the process that `began`, without logins."""
    tests: tuple[str, ...] = ()
    """Node ids of the tests of the process that `began`."""
    plan: str = ""
    """Digest of everything that a run's numbers depend on."""
    job: str = ""
    """Name of the Slurm job that is submitted; empty for steps and for processes of this machine."""
    script: str = ""
    """Script of that job, as Slurm will show it."""
    hosts: tuple[str, ...] = ()
    """The nodes that are lent to a run, where the session holds nodes."""
    job_id: str = ""
    """Slurm job, or process id of the launcher."""
    record: str = ""
    """Digest of the record, without the verdicts that it is given later."""
    verdict: str = ""
    """Verdict of the test that was `judged`."""

    @property
    def line(self) -> bytes:
        """The event as a line of the journal."""
        return self.frame(to_json(self, exclude_defaults=True).encode())

    @staticmethod
    def frame(text: bytes) -> bytes:
        """A text as a line with its checksum."""
        return b"%08x %s\n" % (zlib.crc32(text), text)

    @classmethod
    def of_line(cls, line: bytes) -> Self | None:
        """The event of a line, its end cut off; None where the line is damaged."""
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


class Journal:
    """A session's journal, open in the process that owns the session: a lock keeps others out as long as it lives.

    Attributes:
        earlier: the events that were in it.
        is_locked: its file system has locks.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal, or make it, and cut off a torn last line.

        Raises OwnedError: another process has it open; ConfigError: a line is damaged; OSError: writing it fails.
        """
        self.path = path
        self._writing = threading.Lock()  # runs are launched by other threads than the one that ends them
        make_folder(path.parent)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            self.is_locked = self._lock()
            self.earlier, self._size = read_journal(path)
        except BaseException:
            os.close(self._file)
            raise
        if os.fstat(self._file).st_size > self._size:
            os.ftruncate(self._file, self._size)

    def note(self, event: JournalEvent, *, sync: bool = True) -> None:
        """Write an event; `sync` it if an action follows. After an OSError the journal is as before."""
        with self._writing:
            line = event.line
            try:
                written = os.pwrite(self._file, line, self._size)
                if written < len(line):
                    raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were written")  # noqa: TRY301
                if sync:
                    os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
            self._size += written

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._file)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OwnedError(f"{self.path} is open in another process") from error
        except OSError:
            return False
        return True


class OwnedError(ConfigError):
    """Another process has the journal open."""


def read_journal(path: Path) -> tuple[tuple[JournalEvent, ...], int]:
    """The events of a journal, and its size up to a torn last line. Raises ConfigError: it is damaged."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    *lines, torn = data.split(b"\n")
    events = [JournalEvent.of_line(line) for line in lines]
    whole = tuple(event for event in events if event is not None)
    if len(whole) < len(events):
        raise ConfigError(
            f"{path}: line {events.index(None) + 1} of {len(events)} is damaged, so it is unknown what this session "
            "did: begin a new session, and look for jobs of this one with squeue"
        )
    return whole, len(data) - len(torn)


def is_owned(path: Path) -> bool:
    """True if a process has the journal open; False where the file system has no locks."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def now(event: EventKind, **facts: object) -> JournalEvent:
    """An event of this moment."""
    return JournalEvent.model_validate({"event": event, "at": time.time(), **facts})


def digest_of_plan(run: RunSpec, settings: Settings) -> str:
    """Digest of the facts before its start that a run's numbers depend on.

    Thresholds are left out, but for a run that they may end early: those of today are applied to what was measured.
    """
    system, recipe = settings.system, run.recipe
    thresholds = {"references"} if run.early is None else set()
    environment = system.environments.get(recipe.engine)
    facts = {
        "recipe": recipe.model_dump(mode="json", exclude=thresholds),
        "early": run.early and run.early.model_dump(mode="json"),
        "topology": asdict(settings.topology(recipe)),
        "system": [system.name, dict(system.env), system.setup, system.srun_args, system.python],
        "environment": environment and environment.model_dump(mode="json"),
        "simulate": settings.simulate and str(settings.simulate),
        "nodes": [settings.cluster, *(settings.slurm.get(name) for name in ("partition", "constraint", "nodelist"))],
    }
    return _digest(json.dumps(facts, sort_keys=True))


def digest_of_record(record: Record) -> str:
    """Digest of a record, verdicts excluded: these are added later."""
    return _digest(to_json(record, exclude={"judgements"}))


def digests_of_file(data: bytes) -> set[str]:
    """The digests that a record's file may have, whichever version wrote it; of a file that cannot be read, none."""
    try:
        plain = json.loads(data)
        plain.pop("judgements", None)
        return {_digest(_PLAIN.dump_json(plain).decode()), _digest(json.dumps(plain, ensure_ascii=False))}
    except (ValueError, AttributeError, RecursionError):
        return set()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
