"""Secrets in the files of a bundle: the values that are known here, and texts that look like one."""

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from pytest_llmbench.bundle.contents import Contents
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import read_report
from pytest_llmbench.core.wire.foreign import Mark, redacted
from pytest_llmbench.workloads.node.secret_filter import read_secrets, secret_values

_PIECE, _LONGEST = 1 << 20, 4096
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


def secrets_in(contents: Contents, folder: Path, looked_at: Collection[str]) -> Iterator[str]:
    """Yield the places, `file:line`, of what is a secret or looks like one.

    Secrets are the values that this process and the session's tasks know, those that the drivers of runs have marked,
    and texts that have the form of one, such as private keys and tokens of well-known services.

    Args:
        contents: files of the bundle.
        folder: that of the session.
        looked_at: files that a person has read and found free of secrets.
    """
    known = secret_values(os.environ, ()) | _of_tasks(folder)
    for name, path in contents.paths.items():
        if name not in looked_at and (line := _first_secret(path, known, _marks(folder, name))) is not None:
            yield f"{name}:{line}"


def _of_tasks(folder: Path) -> frozenset[str]:
    """The secrets that the tasks of runs and probes had in their environment, as far as they can be read here."""
    known: frozenset[str] = frozenset()
    for name in (layout.TASK, layout.COMMAND):
        for path in folder.rglob(name):
            try:
                told = read_json(path.read_bytes())
                env, files = dict(told.get("env") or {}), dict(told.get("secrets") or {})
            except (OSError, ValueError, AttributeError, TypeError):
                continue  # whatever it is, it goes in as it is
            known |= secret_values({**env, **read_secrets(files)}, files)
    return known


def _marks(folder: Path, name: str) -> tuple[Mark, ...]:
    parts = PurePosixPath(name).parts
    driver = read_report(folder / parts[0] / parts[1]) if parts[0] == layout.FOLDERS["run"] and len(parts) > 2 else None
    return driver.secrets if driver is not None and parts[2] != layout.DRIVER else ()


def _first_secret(path: Path, known: Collection[str], marks: Collection[Mark]) -> int | None:
    """The line of the first secret of a file; None without one. Pieces overlap: a secret may lie across their ends."""
    lines, kept = 0, ""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            text = kept + piece.decode("utf-8", "replace")
            if _has_secret(text, known, marks):
                rows = text.split("\n")
                told = (row for row, line in enumerate(rows) if _has_secret(line, known, marks))
                return lines + 1 + next(told, 0)
            kept = text[-_LONGEST:]
            lines += text[: len(text) - len(kept)].count("\n")
    return None


def _has_secret(text: str, known: Collection[str], marks: Collection[Mark]) -> bool:
    plain = _OWN_TOKENS.sub("", text) if "llmbench:" in text else text
    if any(value in plain for value in known) or any(redacted(plain, (), [mark]) != plain for mark in marks):
        return True
    looked_at, before = [], False
    for row in plain.split("\n") if _sign_in(plain) else ():
        signed = _sign_in(row)
        if signed or before:  # a value may stand in the line after its name
            looked_at.append(row)
        before = signed
    suspect = "\n".join(looked_at)
    return redacted(suspect, ()) != suspect


def _sign_in(text: str) -> bool:
    lowered = _COUNTS.sub("", text).lower()
    return any(sign in lowered for sign in _SIGNS)
