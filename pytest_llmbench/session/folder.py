"""The folder of a session: its plan, records, verdicts and journal, and which of several sessions is the newest.

Every command that looks at finished or running sessions reads them here. Reports use `read_folder`, which lists what is
missing or damaged; everything else uses the functions that raise.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, PositiveInt, ValidationError

from pytest_llmbench.cluster.runs import Declared, Plan, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_at_most, read_regular, refuse_special_files
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord, SessionVerdicts
from pytest_llmbench.core.schema import Document
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.journal.journal import JournalEvent, read_journal
from pytest_llmbench.session.live.snapshot import one_line

AnyKept = TypeVar("AnyKept", bound=Record)

_LARGEST = 512 << 20
# Bytes of the files whose records stay in memory, which takes some ten times as much.
_MOST_KEPT = 16 << 20
# Facts of a system that its session keeps.
_OF_SYSTEM = ("name", "cluster", "gpus_per_node", "cpu_ranks_per_node", "gpu", "network", "validation")
_BEGAN = b'"event":"began"'


class KeptSystem(Document):
    """`system.json`: facts of its system and options that the session's logs are judged by; no secret is kept."""

    title = "facts of a session's system"
    system: System
    """The system, without its variables, environments and shell lines, which may have secrets."""
    nodes: PositiveInt | None = None
    """Number of nodes that the session asked for; null stands for each recipe's own number."""
    scale: Scale = "full"
    """Scale of the runs: `full` or `smoke`."""
    bare: bool = False
    """True if the system sets neither variables nor environments of frameworks, which are not kept."""
    rerun: bool = False
    """True if undecided runs were to be repeated, which costs each look some certainty."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Keep what is needed of a session's system."""
        system = settings.system
        kept = System(**{name: getattr(system, name) for name in _OF_SYSTEM})
        bare = not (system.env or system.environments)
        return cls(system=kept, nodes=settings.nodes, scale=settings.scale, bare=bare, rerun=settings.rerun)


class Records(Mapping[str, AnyKept]):
    """Records by name; one that is None is read when it is asked for: those of thousands of runs need much memory."""

    def __init__(self, read: Callable[[str], AnyKept], records: Mapping[str, AnyKept | None]) -> None:
        self._read, self._records = read, records

    def __getitem__(self, name: str) -> AnyKept:
        return self._records[name] or self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionFolder:
    """The files of a session, as far as they can be read."""

    path: Path
    id: str
    tests: tuple[Declared, ...] | None  # the declared tests; None if `session.json` cannot be read
    verdicts: SessionVerdicts | None  # None if the session was killed before it wrote them
    runs: Mapping[str, RunRecord]
    checks: Mapping[str, HealthRecord]
    # The folder of each record, and the reason if it cannot be read, by `run` or `check`, and name
    places: Mapping[tuple[str, str], Path]
    broken: Mapping[tuple[str, str], str]
    events: tuple[JournalEvent, ...]  # the undamaged lines of the journal
    damage: tuple[str, ...]  # other faults of the folder, in words
    notes: tuple[str, ...] = ()  # how its runs compare with the recipes of the reader
    # Those of `broken` that can be read, and that contradict themselves or other files
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)


class _PlannedRun(BaseModel):
    key: str


class _Planned(BaseModel):
    """The part of a plan that a report needs: recipes, which may be damaged, are left out."""

    runs: tuple[_PlannedRun, ...]
    checks: tuple[str, ...] = ()
    tests: tuple[Declared, ...] = ()
    began: float | None = None


def read_folder(path: Path) -> SessionFolder:
    """Read a folder for a report, and list what is damaged.

    Raises ConfigError if it lacks records, or has a special file such as a FIFO.
    """
    refuse_special_files(path)
    damage: list[str] = []
    plan: _Planned | None = None
    verdicts: SessionVerdicts | None = None
    events: tuple[JournalEvent, ...] = ()
    try:
        plan = _Planned.model_validate_json(read_regular(path / layout.PLAN))
    except (OSError, ValidationError) as error:
        damage.append(
            f"{layout.PLAN} cannot be read, so it is not known which tests were declared: {one_line(str(error))}"
        )
    try:
        verdicts = SessionVerdicts.read(path / layout.VERDICTS)
    except ConfigError as error:
        # It is missing if the session was killed.
        state = f"cannot be read ({one_line(str(error))})" if (path / layout.VERDICTS).exists() else "is not there"
        damage.append(f"{layout.VERDICTS} {state}: verdicts are shown as far as records and journal have them")
    with contextlib.suppress(OSError):
        *lines, _ = read_regular(path / layout.JOURNAL).split(b"\n")  # the last line may be half written
        events = tuple(event for event in map(JournalEvent.of_line, lines) if event is not None)
        if lost := len(lines) - len(events):
            damage.append(f"{lost} of {len(lines)} lines of the journal are damaged")
    broken: dict[tuple[str, str], str] = {}
    runs = _readable_records(path, RunRecord, [run.key for run in plan.runs] if plan else (), broken)
    checks = _readable_records(path, HealthRecord, plan.checks if plan else (), broken)
    if plan is None and verdicts is None and not runs and not checks and not broken:
        raise ConfigError(
            f"{path} is not the folder of a session: it has no {layout.PLAN} and no record; name the folder that "
            "pytest printed after `reports in`, or give none for the newest"
        )
    names = [("run", name) for name in runs] + [("check", name) for name in checks] + [*broken]
    return SessionFolder(
        path=path,
        id=verdicts.session if verdicts is not None else path.resolve().name,
        tests=plan.tests if plan is not None else None,
        verdicts=verdicts,
        runs=runs,
        checks=checks,
        places={(about, name): path / layout.FOLDERS[about] / name for about, name in names},
        broken=broken,
        events=events,
        damage=tuple(damage),
    )


def read_plan(folder: Path) -> Plan:
    """Read the whole plan of a session. Raises ConfigError: it is missing or damaged."""
    path = folder / layout.PLAN
    try:
        return Plan.model_validate_json(read_at_most(path, _LARGEST, "; is this the folder of a session?"))
    except ValidationError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def read_records(folder: Path, kind: type[AnyKept]) -> dict[str, AnyKept]:
    """Read all records of a kind, by name. Raises ConfigError: one is damaged, or of another run or check."""
    records = {}
    for path in record_files(folder, kind.about):
        record = kind.read(path)
        if record.name != path.parent.name:
            raise ConfigError(f"{path} is the record of {record.name}")
        records[record.name] = record
    return records


def record_files(folder: Path, about: str) -> list[Path]:
    """The record files of a session's runs or checks, by name; those of repeated attempts are left out."""
    return sorted((folder / layout.FOLDERS[about]).glob(f"*/{layout.RECORD}"))


def record_files_below(folder: Path, about: str) -> list[Path]:
    """The record files of the runs or checks of all sessions below a folder."""
    return sorted(folder.rglob(f"{layout.FOLDERS[about]}/*/{layout.RECORD}"))


def read_events(folder: Path) -> tuple[JournalEvent, ...]:
    """The events of a journal; empty where there is none, as of a replay. Raises ConfigError: it is damaged."""
    path = folder / layout.JOURNAL
    return read_journal(path)[0] if path.exists() else ()


def has_ended(folder: Path) -> bool:
    """True if the journal ends with the end, or is missing, as of a replay (ConfigError: damaged)."""
    if not (folder / layout.JOURNAL).exists():
        return True
    events = read_events(folder)
    return bool(events) and events[-1].event == "ended"


def session_of(folder: Path) -> Session:
    """The session of a folder, with the id in its journal (its folder may have a name of `--llmbench-session-name`)."""
    ids = [event.session for event in read_events(folder) if event.session]
    return Session(id=ids[0] if ids else folder.resolve().name, folder=folder)


def is_session(folder: Path) -> bool:
    """True for a folder with a plan or a journal; false for the link `latest`, and for a copy of it."""
    if folder.is_symlink() or folder.name == layout.LATEST:
        return False
    return any((folder / name).is_file() for name in (layout.PLAN, layout.JOURNAL))


def sessions_in(run_dir: Path, *, without: str | None = None) -> list[Path]:
    """The folders of all sessions in a folder, the one that began last first. Raises ConfigError: it does not exist.

    Sessions that have a file of the name `without` are left out.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: there is no such folder; give another --run-dir")
    folders = [folder for folder in run_dir.iterdir() if is_session(folder)]
    folders = [folder for folder in folders if without is None or not (folder / without).exists()]
    link = (run_dir / layout.LATEST).resolve()
    # A copy of a session began when the session did.
    return sorted(folders, key=lambda folder: (began_at(folder), folder.resolve() == link, folder.name), reverse=True)


def newest(run_dir: Path) -> Path:
    """The target of the link `latest`, else the session that began last. Raises ConfigError: no session is found."""
    link = run_dir / layout.LATEST
    if link.is_symlink() and is_session(target := link.resolve()):
        return run_dir / target.name if target.parent == run_dir.resolve() else target
    sessions = sessions_in(run_dir) if run_dir.is_dir() else []
    if not sessions:
        raise ConfigError(f"{run_dir} has no session: name the folder of one, or give --run-dir")
    return sessions[0]


def find_session(which: str | Path | None, run_dir: Path) -> Path:
    """The folder of the session with that path, or that id or name in `run_dir`; None or `latest` for the newest there.

    Raises ConfigError if no session is found.
    """
    if which is None or str(which) == layout.LATEST:
        return newest(run_dir)
    for folder in (run_dir / which, Path(which)):
        if folder.is_dir():
            return folder
    raise ConfigError(f"there is no session {str(which)!r}: it is neither a folder nor an id in {run_dir}")


def began_at(folder: Path) -> float:
    """Unix time at which the last process of a session began, by its journal or its plan.

    Times of files change when a folder is copied or its plan is extended. So they count only where journal, plan and
    the id in the folder's name are of no help.
    """
    journal, plan = folder / layout.JOURNAL, folder / layout.PLAN
    with contextlib.suppress(OSError):
        lines = [line for line in read_regular(journal).split(b"\n") if _BEGAN in line]
        events = [event for event in map(JournalEvent.of_line, reversed(lines)) if event is not None]
        if events:
            return events[0].at
    with contextlib.suppress(OSError, ValidationError):
        if (began := _Planned.model_validate_json(read_regular(plan)).began) is not None:
            return began
    with contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(folder.name[:15], "%Y%m%d-%H%M%S"))
    return max((path.stat().st_mtime for path in (journal, plan) if path.exists()), default=0.0)


def _readable_records(
    path: Path, kind: type[AnyKept], planned: Iterable[str], broken: dict[tuple[str, str], str]
) -> Records[AnyKept]:
    """The readable records of a kind, those that were planned first; reasons for the others go into `broken`."""
    folder = path / layout.FOLDERS[kind.about]
    there = sorted(place.name for place in folder.iterdir() if place.is_dir()) if folder.is_dir() else []
    readable: dict[str, AnyKept | None] = {}
    room = _MOST_KEPT
    for name in dict.fromkeys([*planned, *there]):
        file = folder / name / layout.RECORD
        try:
            record = kind.read(file)
        except ConfigError as error:
            altered = file.with_name(layout.ALTERED).exists()
            missing = f"it was changed while its session went on, and lies in {layout.ALTERED}" if altered else ""
            broken[kind.about, name] = one_line(str(error)) if file.exists() else missing or "it is not there"
            continue
        if record.name != name:
            broken[kind.about, name] = f"it is of {kind.about} {record.name!r}"
        else:
            room -= file.stat().st_size
            readable[name] = record if room >= 0 else None
    return Records(lambda name: kind.read(folder / name / layout.RECORD), readable)


def point_to_latest(folder: Path) -> None:
    """Make the link `latest` lead to a session's folder. One step replaces the old link.

    Raises OSError if the file system lacks links, or another file has that name.
    """
    link, new = folder.with_name(layout.LATEST), folder.with_name(f".{layout.LATEST}.{secrets.token_hex(4)}")
    if link.exists() and not link.is_symlink():
        raise FileExistsError(f"{link} must be a link to be replaced; it stays as it is")
    new.symlink_to(folder.name, target_is_directory=True)
    try:
        new.replace(link)
    except OSError:
        new.unlink(missing_ok=True)
        raise
