"""The records of a session's runs: a few in memory, all others read again from their files when they are needed."""

import hashlib
import threading
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.record.early import EarlyVerdict
from pytest_llmbench.core.record.records import Problem, RunRecord
from pytest_llmbench.core.wire import layout

# Records in memory that have no verdict yet: while one run is long, thousands of others may wait for theirs.
_MOST_WAITING = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """The facts of a run's record that are needed all the time.

    Attributes:
        recipe: its name.
        problem: the reason why the run cannot be judged.
        early: the looks at a run that may be ended early.
        replayed: whether it was made elsewhere.
        cut_short: whether the end of its session is all that is known of it.
        step: the last step.
        gpus, nodes: their numbers.
        started: Unix time; None where it did not get that far.
        took_s: seconds that it took.
        facts: versions, provenance and command.
    """

    recipe: str
    problem: Problem | None
    early: EarlyVerdict | None
    replayed: bool
    cut_short: bool
    step: int
    gpus: int
    nodes: int
    started: float | None
    took_s: float
    facts: tuple[tuple[str, str], ...]


class KeptRuns(Mapping[str, RunRecord]):
    """The records of finished runs by key: the latest that wait to be judged are in memory.

    One that was let go is read from its file each time, which has to have the digest of the text that was written. If
    it has another, or is gone, the record is lost, and no longer among these: `get`, `values` and `items` leave it out,
    and `[]` raises KeyError.

    Attributes:
        glances: the facts of each that are known without reading it.
        lock: held while a file is read, and from the moment in which one is replaced until its new digest is kept: a
            reader in between would take the file for changed.
    """

    def __init__(self, lose: Callable[[str, Path, str], None]) -> None:
        """Keep none yet.

        Args:
            lose: told the key of a record that is lost, its file, and why.
        """
        self.glances: dict[str, Glance] = {}
        self.lock = threading.RLock()
        self._lose = lose
        self._records: dict[str, RunRecord] = {}
        self._files: dict[str, tuple[str, bytes]] = {}
        self._alike: dict[tuple[str, str], tuple[str, str]] = {}

    def keep(self, record: RunRecord, written: str | None) -> None:
        """Keep a record.

        Args:
            record: the record.
            written: the text of its file; None where that could not be written: then it stays in memory.
        """
        with self.lock:
            if written is None:
                self._files.pop(record.key, None)
            else:
                self._files[record.key] = record.folder, _digest(written.encode())
            self._records[record.key] = record
            self.glances[record.key] = self._glance(record)
            if len(self._records) > _MOST_WAITING:
                self.let_go(next((key for key in self._records if key in self._files), record.key))

    def let_go(self, key: str) -> None:
        """Keep a record in its file alone, if it has one."""
        with self.lock:
            if key in self._files:
                self._records.pop(key, None)

    def check(self) -> None:
        """See that the file of every record that was let go is the one that was written; lose the others."""
        with self.lock:
            for key in [key for key in self._files if key not in self._records]:
                self._bytes(key)

    def __getitem__(self, key: str) -> RunRecord:
        with self.lock:
            record = self._records.get(key) or self._read(key)
        if record is None:
            raise KeyError(key)
        return record

    def __contains__(self, key: object) -> bool:
        return key in self.glances

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.glances))  # the runner adds to them meanwhile

    def __len__(self) -> int:
        return len(self.glances)

    def values(self) -> ValuesView[RunRecord]:
        """Records, read one at a time."""
        return _Values(self)

    def items(self) -> ItemsView[str, RunRecord]:
        """Keys and records, likewise."""
        return _Items(self)

    def _read(self, key: str) -> RunRecord | None:
        data = self._bytes(key)
        return RunRecord.model_validate_json(data) if data is not None else None

    def _bytes(self, key: str) -> bytes | None:
        """The content of a record's file; None if the file is gone or was changed."""
        folder, digest = self._files.get(key, ("", b""))
        if not folder:
            return None
        path = Path(folder) / layout.RECORD
        try:
            data = path.read_bytes()
        except OSError as error:
            why = f"it could not be read ({error.strerror})"
        else:
            if _digest(data) == digest:
                return data
            why = "it was changed"
        del self._files[key], self.glances[key]
        self._lose(key, path, why)
        return None

    def _glance(self, record: RunRecord) -> Glance:
        told = {**record.versions, **record.provenance}
        # Of a job of its own it names the sbatch script.
        told |= {"command": record.command} if told and record.command else {}
        return Glance(
            recipe=record.recipe.name, problem=record.problem, early=record.early, replayed=record.replayed is not None,
            cut_short=record.was_cut_short, step=max((step.step for step in record.steps), default=0),
            gpus=record.gpus, nodes=record.nodes, started=record.timings.started, took_s=record.took_s,
            # Thousands of runs have the same versions.
            facts=tuple(self._alike.setdefault(fact, fact) for fact in told.items()),
        )  # fmt: skip


class _Values(ValuesView[RunRecord]):
    _mapping: KeptRuns

    def __iter__(self) -> Iterator[RunRecord]:
        return (record for _, record in _Items(self._mapping))


class _Items(ItemsView[str, RunRecord]):
    _mapping: KeptRuns

    def __iter__(self) -> Iterator[tuple[str, RunRecord]]:
        for key in self._mapping:
            record = self._mapping.get(key)
            if record is not None:
                yield key, record


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
