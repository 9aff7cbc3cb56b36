"""After a session: files that no reader needs any more are taken away, as each costs an inode of the shared folder."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.beginning import SUBMITTED
from pytest_llmbench.session.record_store import Glance


def sweep(session: Path, runs: Mapping[str, Glance]) -> None:
    """Take away what jobs executed, once all have ended, their empty logs, and of sane runs where each rank stood.

    A file that cannot be removed stays, without a message.

    Args:
        session: its folder.
        runs: the facts of its finished runs, by key.
    """
    for path in (*_done_with(session), *_empty_logs(session)):
        _remove(path)
    for key, run in runs.items():
        if run.problem is None and not run.replayed:
            phases = session / layout.FOLDERS["run"] / key / layout.PHASES
            for path in phases.glob("*"):
                _remove(path)
            with contextlib.suppress(OSError):
                phases.rmdir()


def _done_with(session: Path) -> Iterator[Path]:
    """Yield the files that say what jobs execute, and how that ended: no job needs them any more."""
    for folder in _log_folders(session):
        yield from (*folder.glob(f"*_{SUBMITTED}"), *folder.glob("*_result.json"))


def _empty_logs(session: Path) -> Iterator[Path]:
    for folder in _log_folders(session):
        for path in (*folder.glob("*_log.err"), *folder.glob("*_log.out")):
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:
                    yield path


def _log_folders(session: Path) -> Iterator[Path]:
    yield session / layout.HOLDER
    yield from session.glob(f"{layout.FOLDERS['run']}/*/{layout.LOGS}")
    yield from session.glob(f"{layout.FOLDERS['check']}/*/{layout.STEPS}/*/{layout.LOGS}")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
