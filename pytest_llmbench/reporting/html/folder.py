"""A session's folder, read as far as it can be: missing and damaged files are listed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import Record, RunRecord
from pytest_llmbench.core.record.verdicts import SessionVerdicts
from pytest_llmbench.core.wire import layout
from pytest_llmbench.session.journal.journal import JournalEvent

AnyKept = TypeVar("AnyKept", bound=Record)


class FolderRecords(Mapping[str, AnyKept]):
    """Records in a folder by name, so that those of thousands of runs are never in memory together."""

    def __init__(self, kind: type[AnyKept], folder: Path, names: Iterable[str]) -> None:
        self._kind = kind
        self._folder = folder
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> AnyKept:
        """Read a record.

        Raises:
            KeyError: no run or check has that name.
            ConfigError: it could be read before, and cannot any more.
        """
        if name not in self._names:
            raise KeyError(name)
        return self._kind.read(self._folder / name / layout.RECORD)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionFolder:
    """The files of a session.

    Attributes:
        path: its folder.
        id: session id.
        tests: those that were declared; None if `session.json` cannot be read.
        verdicts: of all tests; None where they were not written, as of a session that was killed.
        runs, checks: the records that can be read, by name; each is read again whenever it is asked for.
        places: the folder in which each of them lies, by `run` or `check`, and name.
        broken: the reason why a record cannot be read, likewise.
        events: of the journal, those whose lines are whole.
        damage: other faults of the folder, in words.
    """

    path: Path
    id: str
    tests: tuple[Declared, ...] | None
    verdicts: SessionVerdicts | None
    runs: Mapping[str, RunRecord]
    checks: Mapping[str, HealthRecord]
    places: Mapping[tuple[str, str], Path]
    broken: Mapping[tuple[str, str], str]
    events: tuple[JournalEvent, ...]
    damage: tuple[str, ...]


class _PlannedRun(BaseModel):
    key: str


class _Planned(BaseModel):
    """The part of a plan that a report needs, without the recipe of each run."""

    runs: tuple[_PlannedRun, ...]
    checks: tuple[str, ...] = ()
    tests: tuple[Declared, ...] = ()


def read_folder(path: Path) -> SessionFolder:
    """Read the folder of a session.

    Raises:
        ConfigError: it is not one: it has neither a plan nor a record nor verdicts.
    """
    damage: list[str] = []
    plan = _plan(path, damage)
    verdicts = _verdicts(path, damage)
    broken: dict[tuple[str, str], str] = {}
    runs = _records(path, RunRecord, plan and [run.key for run in plan.runs], broken)
    checks = _records(path, HealthRecord, plan and plan.checks, broken)
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
        events=_events(path, damage),
        damage=tuple(damage),
    )


def newest(run_dir: Path) -> Path:
    """The newest session in a folder of sessions.

    Raises:
        ConfigError: there is none.
    """
    # Beside the sessions there may be a link to one of them.
    folders = [each.parent for each in run_dir.glob(f"*/{layout.PLAN}") if not each.parent.is_symlink()]
    if not folders:
        raise ConfigError(f"{run_dir} has no session: name the folder of one, or give --run-dir")
    # A session may have a name, which says nothing of its time.
    return max(folders, key=lambda folder: ((folder / layout.PLAN).stat().st_mtime_ns, folder.name))


def _plan(path: Path, damage: list[str]) -> _Planned | None:
    try:
        return _Planned.model_validate_json((path / layout.PLAN).read_bytes())
    except (OSError, ValidationError) as error:
        damage.append(f"{layout.PLAN} cannot be read, so it is not known which tests were declared: {_short(error)}")
        return None


def _verdicts(path: Path, damage: list[str]) -> SessionVerdicts | None:
    try:
        return SessionVerdicts.read(path / layout.VERDICTS)
    except ConfigError as error:
        # A session of an earlier version has none, and neither has one that was killed.
        what = f"cannot be read ({_short(error)})" if (path / layout.VERDICTS).exists() else "is not there"
        damage.append(f"{layout.VERDICTS} {what}: verdicts are shown as far as records and journal have them")
        return None


def _records(
    path: Path, kind: type[AnyKept], planned: object, broken: dict[tuple[str, str], str]
) -> FolderRecords[AnyKept]:
    """The records of a kind that can be read, those that were planned first."""
    folder = path / layout.FOLDERS[kind.about]
    there = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    names = [*planned] if isinstance(planned, list | tuple) else []
    readable = []
    for name in dict.fromkeys([*names, *there]):
        try:
            record = kind.read(folder / name / layout.RECORD)
        except ConfigError as error:
            altered = folder / name / layout.ALTERED
            if (folder / name / layout.RECORD).exists():
                why = _short(error)
            else:
                told = f"it was changed while its session went on, and lies in {altered.name}"
                why = told if altered.exists() else "it is not there"
            broken[kind.about, name] = why
            continue
        if record.name != name:
            broken[kind.about, name] = f"it is of {kind.about} {record.name!r}"
        else:
            readable.append(name)
    return FolderRecords(kind, folder, readable)


def _events(path: Path, damage: list[str]) -> tuple[JournalEvent, ...]:
    """The events of whole lines: a report says what is left, and decides nothing by it."""
    try:
        data = (path / layout.JOURNAL).read_bytes()
    except OSError:
        return ()
    *lines, _ = data.split(b"\n")
    events = [JournalEvent.of_line(line) for line in lines]
    if lost := events.count(None):
        damage.append(f"{lost} of {len(events)} lines of the journal are damaged")
    return tuple(event for event in events if event is not None)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
