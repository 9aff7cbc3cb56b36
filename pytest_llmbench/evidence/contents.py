"""The files of a bundle: those of a session's folder and the logs that it replayed, refused with a secret in them."""

import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import read_regular
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import Mark, redacted
from pytest_llmbench.evidence.archive import MANIFEST, BundleError
from pytest_llmbench.workloads.node.secret_filter import read_secrets, secret_values

# Logs of runs that were made elsewhere, a folder for each run.
_REPLAYED = "replayed"
CERTIFICATE = "certificate.html"
# Files that follow from the others, and that decide nothing.
MADE_AGAIN = {
    layout.PAGE: "`llmbench report` writes it again from the other files",
    layout.LIVE: "it is the live view of the session",
    layout.SUMMARY: f"{layout.VERDICTS} has what it says",
    layout.WORKERS_PLAN: "it is the plan of a worker of pytest-xdist, and the session's plan is there",
}
_LONGEST_NAME = 1000
_PIECE, _LONGEST_SECRET = 1 << 20, 4096
# The tokens of sessions and runs are names.
_OWN_TOKENS = re.compile(r"llmbench:[\w./-]*")
# One of these is in every text that `redacted` takes for a secret. To look for them first is 20 times as fast.
_SIGNS = (
    "authorization", "bearer", "passw", "passphrase", "token", "secret", "credential", "cookie", "key", "://", "hf_",
    "gho_", "ghp_", "ghs_", "ghr_", "ghu_", "github_pat_", "glpat-", "nvapi-", "sk-", "xox", "akia", "asia", "eyj",
    "private key",
)  # fmt: skip
# Counts of tokens, in every line of a step log.
_COUNTS = re.compile("tokens|tokeniz", re.IGNORECASE)


class BundledFile(Strict):
    """One file of a bundle: its path in the session's folder, with `/`, its size in bytes, and its SHA-256."""

    path: str
    size: NonNegativeInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(Strict):
    """`manifest.json` of a bundle: every file in it, in the order of the archive.

    `left_out` has the reason for each file of the session's folder that is not in it, `replayed` the path of the logs
    of each run that was made elsewhere.
    """

    schema_version: Literal[1] = 1
    session: str
    llmbench: str
    files: tuple[BundledFile, ...]
    left_out: Mapping[str, str] = {}
    replayed: Mapping[str, str] = {}

    @classmethod
    def read(cls, text: bytes) -> "Manifest":
        """Read a manifest.

        Raises BundleError if it is unreadable, or a file would leave the folder or replace another one.
        """
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            raise BundleError(f"{MANIFEST} cannot be read: {error}") from error
        names: set[str] = set()
        for path in (file.path for file in manifest.files):
            refuse_name(path)
            # Files that differ in their case alone would be one on other file systems.
            name = unicodedata.normalize("NFKC", path).casefold()
            if name in names:
                raise BundleError(f"{MANIFEST}: {path} is there twice, or differs in its case alone")
            names.add(name)
        if both := names & {str(folder) for name in names for folder in PurePosixPath(name).parents}:
            raise BundleError(f"{MANIFEST}: {min(both)} is a file and a folder")
        for path in manifest.replayed.values():
            refuse_name(path)
        return manifest


def refuse_name(name: str) -> None:
    """Refuse a path that could lead out of a folder, or that others could read as another one. Raises BundleError."""
    strange = any(part in {"", ".", ".."} for part in name.split("/"))
    if strange or "\\" in name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise BundleError(
            f"{name[:200]!r} cannot be the path of a file in a bundle: `..`, `\\` and control characters are refused"
        )


def find_contents(
    folder: Path, runs: Mapping[str, RunRecord]
) -> tuple[dict[str, Path], dict[str, str], dict[str, str]]:
    """Find the files of a bundle: in the session's folder, and the logs that its runs replayed.

    Returns:
        The place of each file by its path in the bundle, the reason for each file that is left out, and the path of
        each replayed run's logs.

    Raises BundleError if a file has a name that no bundle may have, and ConfigError if logs that were replayed are
    gone.
    """
    places: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    replayed = {}
    _add_folder(folder, "", places, left_out)
    for key, record in runs.items():
        if record.replayed is None:
            continue
        logs, name = Path(record.replayed), f"{_REPLAYED}/{key}"
        if not logs.exists():
            raise ConfigError(f"run {key}: its logs are not in {logs} any more: without them it cannot be verified")
        if logs.is_file():
            name = f"{name}/{logs.name}"
            places[name] = logs
        else:
            _add_folder(logs, f"{name}/", places, left_out)
        replayed[key] = name
    for name in places:
        refuse_name(name)
    return dict(sorted(places.items())), left_out, replayed


def _add_folder(folder: Path, prefix: str, places: dict[str, Path], left_out: dict[str, str]) -> None:
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in links)
        for path in sorted(Path(place, name) for name in [*names, *links]):
            name = prefix + path.relative_to(folder).as_posix()
            if reason := MADE_AGAIN.get(name) or _reason_to_leave_out(path):
                left_out[name] = reason
            elif name != CERTIFICATE:
                places[name] = path


def _reason_to_leave_out(path: Path) -> str:
    if path.is_symlink():
        return "a symbolic link"
    if not path.is_file():
        return "no regular file"
    return "a pickle, which runs code when it is read" if path.suffix == ".pkl" else ""


def find_secrets(places: Mapping[str, Path], folder: Path, harmless_files: Collection[str]) -> Iterator[str]:
    """Yield the places, `file:line`, of what is a secret or looks like one.

    Secrets are the values that this process and the session's tasks know, those that the drivers of runs have marked,
    and texts that have the form of one, such as private keys and tokens of well-known services. `places` has each file
    by its path in the bundle; `harmless_files` are files that a person has found free of secrets.
    """
    known = secret_values(os.environ, ()) | _secrets_of_tasks(folder)
    for name, path in places.items():
        if name not in harmless_files and (line := _first_secret(path, known, _marks(folder, name))) is not None:
            yield f"{name}:{line}"


def _secrets_of_tasks(folder: Path) -> frozenset[str]:
    """The secrets that the tasks of runs and probes had in their environment, as far as they can be read here."""
    known: frozenset[str] = frozenset()
    for path in (*folder.rglob(layout.TASK), *folder.rglob(layout.COMMAND)):
        try:
            task = read_json(read_regular(path))
            env, files = dict(task.get("env") or {}), dict(task.get("secrets") or {})
        except (OSError, ValueError, AttributeError, TypeError):
            continue  # a file other than a task goes in as it is
        known |= secret_values({**env, **read_secrets(files)}, files)
    return known


def _marks(folder: Path, name: str) -> tuple[Mark, ...]:
    parts = PurePosixPath(name).parts
    if parts[0] != layout.FOLDERS["run"] or len(parts) < 3 or parts[2] == layout.DRIVER:
        return ()
    driver = read_report(folder / parts[0] / parts[1])
    return driver.secrets if driver is not None else ()


def _first_secret(path: Path, known: Collection[str], marks: Collection[Mark]) -> int | None:
    """The line of the first secret of a file; None without one. Pieces overlap: a secret may lie across their ends."""
    lines, kept = 0, ""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            text = kept + piece.decode("utf-8", "replace")
            if _has_secret(text, known, marks):
                rows = enumerate(text.split("\n"))
                return lines + 1 + next((row for row, line in rows if _has_secret(line, known, marks)), 0)
            kept = text[-_LONGEST_SECRET:]
            lines += text[: len(text) - len(kept)].count("\n")
    return None


def _has_secret(text: str, known: Collection[str], marks: Collection[Mark]) -> bool:
    plain = _OWN_TOKENS.sub("", text) if "llmbench:" in text else text
    if any(value in plain for value in known) or any(redacted(plain, (), [mark]) != plain for mark in marks):
        return True
    suspects, previous = [], False
    for row in plain.split("\n") if _has_sign(plain) else ():
        signed = _has_sign(row)
        if signed or previous:  # a value may stand in the line after its name
            suspects.append(row)
        previous = signed
    suspect = "\n".join(suspects)
    return redacted(suspect, ()) != suspect


def _has_sign(text: str) -> bool:
    lowered = _COUNTS.sub("", text).lower()
    return any(sign in lowered for sign in _SIGNS)
