"""The call that a Slurm job of ours executes: a session writes `submitted.json`, and `workloads.node.begin` reads it.

It is plain data, and names a function of this package: the job executes no other code, whatever the file says.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_text

SUBMITTED = "submitted.json"
_PACKAGE = f"{__name__.partition('.')[0]}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """A function, and what it is called with.

    Attributes:
        entry: `module:function` of this package.
        arguments: texts and numbers.
        folder: the working folder; None for the one that the process has.
    """

    entry: str
    arguments: tuple[str | float, ...]
    folder: str | None = None

    def write(self, path: Path) -> None:
        """Write it, for this user alone."""
        write_text(path, json.dumps(asdict(self)), mode=PRIVATE)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it.

        Raises:
            ConfigError: the file cannot be read, or says anything else.
        """
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        if not _is_beginning(data):
            raise ConfigError(f"{path}: is not what a job of ours begins with: submit the run again")
        return cls(entry=data["entry"], arguments=tuple(data["arguments"]), folder=data["folder"])


def job_file(folder: Path, job_id: str) -> Path:
    """The file under the name of its job, which is given once the session knows the job's id."""
    return folder / f"{job_id}_{SUBMITTED}"


def result_file(folder: Path, job_id: str, task: int | str = 0) -> Path:
    """The file with which a task of a job says how it ended."""
    return folder / f"{job_id}_{task}_result.json"


def _is_beginning(data: Any) -> bool:
    if not isinstance(data, dict) or data.keys() != {"entry", "arguments", "folder"}:
        return False
    entry, arguments, folder = data["entry"], data["arguments"], data["folder"]
    module, colon, function = entry.partition(":") if isinstance(entry, str) else ("", "", "")
    return (
        module.startswith(_PACKAGE)
        and all(part.isidentifier() for part in module.split("."))
        and bool(colon)
        and function.isidentifier()
        and not function.startswith("_")
        and isinstance(arguments, list)
        and all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in arguments)
        and (folder is None or isinstance(folder, str))
    )
