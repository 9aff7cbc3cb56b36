"""The folder of all sessions: a link to the latest one, and a list of them."""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire import layout
from pytest_llmbench.reporting.ci.verdict import SessionVerdict

_SCHEMA = 1


def point_to_latest(folder: Path) -> None:
    """Make the link `latest` lead to a session's folder. One step replaces the old link.

    Raises:
        OSError: the file system lacks links, or another file has that name.
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


def list_sessions(run_dir: Path) -> None:
    """Bring `index.json` up to date: each session that has a verdict, the latest first.

    Only new and changed verdicts are read; deleted folders leave the list. If two sessions end at once, one may be
    missing until the next session ends.

    Raises:
        OSError: writing failed.
    """
    path = run_dir / layout.INDEX
    known = _known(path)
    listed: dict[str, Mapping[str, Any]] = {}
    with os.scandir(run_dir) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        verdict = run_dir / name / layout.VERDICT
        with contextlib.suppress(ConfigError, OSError):
            written = verdict.stat().st_mtime_ns
            entry = known.get(name)
            if entry is None or entry.get("written") != written:
                entry = {"folder": name, "written": written, **SessionVerdict.read(verdict).model_dump(mode="json")}
            listed[name] = entry
    sessions = sorted(listed.values(), key=lambda entry: int(entry["written"]), reverse=True)
    write_text(path, json.dumps({"schema_version": _SCHEMA, "sessions": sessions}, indent=1) + "\n", mode=0o600)


def _known(path: Path) -> dict[str, Mapping[str, Any]]:
    """The entries of the list by folder; empty if it is damaged."""
    try:
        index = json.loads(path.read_bytes())
        if index["schema_version"] == _SCHEMA:
            return {entry["folder"]: entry for entry in index["sessions"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}
