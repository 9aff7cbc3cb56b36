"""The call that a Slurm job of ours executes: a session writes `submitted.json`, and `workloads.node.begin` reads it.

It names a public function of this package. The job executes no other code, whatever is in the file.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_text

SUBMITTED = "submitted.json"
_ENTRY = re.compile(rf"{__name__.partition('.')[0]}(\.[^\W\d]\w*)+:(?!_)[^\W\d]\w*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """A function, and what it is called with."""

    entry: str  # `module:function` of this package
    arguments: tuple[str | float, ...]  # texts and numbers
    folder: str | None = None  # the working folder; None for the one that the process has

    def write(self, path: Path) -> None:
        """Write the file, readable by this user alone."""
        write_text(path, json.dumps(asdict(self)), mode=PRIVATE)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it. Raises ConfigError: the file is unreadable, or is something else."""
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        match data:
            case {"entry": str(entry), "arguments": [*arguments], "folder": None | str() as folder} if (
                len(data) == 3
                and _ENTRY.fullmatch(entry)
                and all(type(value) in {str, int, float} for value in arguments)
            ):
                return cls(entry=entry, arguments=tuple(arguments), folder=folder)
        raise ConfigError(f"{path}: is not the call of a job of ours: submit the run again")


def job_file(folder: Path, job_id: str) -> Path:
    """The file under the name of its job, which it gets as soon as the session has the job's id."""
    return folder / f"{job_id}_{SUBMITTED}"


def result_file(folder: Path, job_id: str, task: int | str = 0) -> Path:
    """The file in which a task of a job writes how it ended."""
    return folder / f"{job_id}_{task}_result.json"
