"""Names of what a session runs, plain enough to cross processes."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.schema import Strict


class RunSpec(Strict):
    """One run that tests are waiting for. Plain enough to cross processes as JSON.

    Attributes:
        key: its name within the session, and that of its folder.
        recipe: what runs.
    """

    key: str
    recipe: Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One pytest session's identity on disk and in Slurm.

    Attributes:
        id: unique and readable; the name of its folder.
        folder: `<run dir>/<id>`.
    """

    id: str
    folder: Path

    @property
    def token(self) -> str:
        """What is written into the comment of every Slurm job of this session."""
        return f"llmbench:{self.id}"

    def run_folder(self, key: str) -> Path:
        """Where a run keeps everything it has."""
        return self.folder / "runs" / key


class Plan(Strict):
    """Every run a session's tests wait for, handed from a worker to the controller."""

    runs: tuple[RunSpec, ...]


def new_session(run_dir: Path) -> Session:
    """Name a session: the time it began, and enough chance that two of them never meet."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return Session(id=name, folder=run_dir / name)
