"""Traces that sessions leave on this machine and in Slurm: what is still there, and what is there twice."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.slurm.conftest import Queue


def remains(folder: Path) -> list[str]:
    """Jobs of the sessions of a user's folder, and processes that were started from it."""
    sessions = [f"llmbench:{path.name}" for path in (folder / "reports").glob("*-*")]
    try:
        lines = Queue.run("squeue", "--noheader", "--format=%i %j %T %k").splitlines()
    except subprocess.CalledProcessError as error:  # no answer does not mean that the queue is empty
        return [f"the queue of a Slurm that does not answer ({error.stderr.strip()})"]
    # Other folders may be named like this one, and more.
    of_us = re.compile(re.escape(str(folder).encode()) + rb"(?![\w-])")
    left = [f"job {line}" for line in lines if any(session in line for session in sessions)]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            is_ours = of_us.search((process / "environ").read_bytes() + words) is not None
        except OSError:  # it has ended
            continue
        if is_ours and words:  # a process that has ended, but is not reaped yet, has no command line
            told = words.replace(b"\0", b" ").decode(errors="replace")
            left.append(f"process {process.name} ({' '.join(told.split())[:60]})")
    return left


def doubles(session: Path | None, key: str) -> int:
    """How many more jobs a run has had than its record explains.

    A controller that was killed may have forgotten some: it shows too few then, never too many.
    """
    if session is None:
        return 0
    lines = Queue.run("squeue", "--noheader", "--states=all", "--format=%j|%k").splitlines()
    had = Counter(line.split("|")[0] for line in lines if f"llmbench:{session.name}" in line)[f"llmbench-{key}"]
    record = session / "runs" / key / "record.json"
    told = json.loads(record.read_text("utf-8")) if record.exists() else {}
    return max(0, had - 1 - len(told.get("superseded", ())) - len(told.get("failed_launches", ())))
