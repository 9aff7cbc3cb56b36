"""The files of a bundle: those of a session's folder and the logs that it replayed, without secrets."""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from pytest_llmbench.bundle.archive import BundleError
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout

# Logs of runs that were made elsewhere, a folder for each run.
REPLAYED = "replayed"
CERTIFICATE = "certificate.html"
# Files that follow from the others, and that decide nothing.
MADE_AGAIN = {
    layout.PAGE: "`llmbench report` writes it again from the other files",
    layout.LIVE: "it is for people who watched the session",
    layout.WORKERS_PLAN: "it is the plan of a worker of pytest-xdist, and the session's plan is there",
}
_LONGEST_NAME = 1000


class BundledFile(Strict):
    """One file of a bundle.

    Attributes:
        path: its path in the session's folder, with `/`.
        size: in bytes.
        sha256: of its content.
    """

    path: str
    size: NonNegativeInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FileLeftOut(Strict):
    """A file of the session's folder that is not in the bundle.

    Attributes:
        path: its path in the session's folder.
        why: the reason.
    """

    path: str
    why: str


class Manifest(Strict):
    """`manifest.json` of a bundle: every file in it.

    Attributes:
        schema_version: 1.
        session: id of the session.
        llmbench: version of the package that made the bundle.
        files: the files, in the order of the archive.
        left_out: the files that are not in it.
        replayed: for each run that was made elsewhere, the path of its logs in the bundle.
    """

    schema_version: Literal[1] = 1
    session: str
    llmbench: str
    files: tuple[BundledFile, ...]
    left_out: tuple[FileLeftOut, ...] = ()
    replayed: Mapping[str, str] = {}

    @classmethod
    def read(cls, text: bytes) -> "Manifest":
        """Read a manifest.

        Raises:
            BundleError: it cannot be read, or a file would leave the folder or meet another one there.
        """
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            raise BundleError(f"manifest.json cannot be read: {error}") from error
        seen: set[str] = set()
        for each in manifest.files:
            refuse_name(each.path)
            # Files that differ in their case alone would be one on other file systems.
            same = unicodedata.normalize("NFKC", each.path).casefold()
            if same in seen:
                raise BundleError(f"manifest.json: {each.path} is there twice, or differs in its case alone")
            seen.add(same)
        folders = {str(folder) for name in seen for folder in PurePosixPath(name).parents}
        if both := folders & seen:
            raise BundleError(f"manifest.json: {min(both)} is a file and a folder")
        for path in manifest.replayed.values():
            refuse_name(path)
        return manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The files of a bundle before it is written.

    Attributes:
        paths: the place of each file by its path in the bundle, in order.
        left_out: files that are not in it.
        replayed: likewise as in the manifest.
    """

    paths: Mapping[str, Path]
    left_out: tuple[FileLeftOut, ...]
    replayed: Mapping[str, str]


def refuse_name(name: str) -> None:
    """Refuse a path that could lead out of a folder, or that others could read as another one.

    Raises:
        BundleError: it is one.
    """
    parts = name.split("/")
    wrong = (
        "\\" in name or len(name) > _LONGEST_NAME or any(part in {"", ".", ".."} for part in parts)
        or not all(character.isprintable() for character in name)
    )  # fmt: skip
    if wrong:
        raise BundleError(
            f"{name[:200]!r} cannot be the path of a file in a bundle: `..`, `\\` and control characters are refused"
        )


def find_contents(folder: Path, runs: Mapping[str, RunRecord]) -> Contents:
    """Find the files of a session.

    Args:
        folder: that of the session.
        runs: its run records; the logs of one that was replayed lie elsewhere.

    Raises:
        BundleError: a file has a name that no bundle may have.
        ConfigError: logs that were replayed are gone.
    """
    found: dict[str, Path] = {}
    left_out: list[FileLeftOut] = []
    replayed = {}
    _gather(folder, "", found, left_out)
    for key, record in runs.items():
        if record.replayed is None:
            continue
        logs, name = Path(record.replayed), f"{REPLAYED}/{key}"
        if not logs.exists():
            raise ConfigError(f"run {key}: its logs are not in {logs} any more: without them it cannot be verified")
        if logs.is_file():
            name = f"{name}/{logs.name}"
            found[name] = logs
        else:
            _gather(logs, f"{name}/", found, left_out)
        replayed[key] = name
    for name in found:
        refuse_name(name)
    return Contents(paths=dict(sorted(found.items())), left_out=tuple(left_out), replayed=replayed)


def _gather(folder: Path, before: str, found: dict[str, Path], left_out: list[FileLeftOut]) -> None:
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in links)
        for name in sorted([*names, *links]):
            path = before + (inside / name).as_posix()
            why = MADE_AGAIN.get(path, "") or _why_left_out(Path(place, name))
            if why:
                left_out.append(FileLeftOut(path=path, why=why))
            elif path != CERTIFICATE:
                found[path] = Path(place, name)


def _why_left_out(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if not stat.S_ISREG(mode):
        return "no regular file"
    return "a pickle: to read one is to execute it" if path.suffix == ".pkl" else ""


def measure(name: str, path: Path) -> BundledFile:
    """Read a file once, for its entry in the manifest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return BundledFile(path=name, size=file.tell(), sha256=digest.hexdigest())
