"""The quarantine list: nodes that a session found bad, kept in a file that the next sessions honour.

Each line has one node: its name, then behind `#` the day, the session and the reason. People may edit it.
"""

import contextlib
import datetime as dt
import fcntl
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.errors import ClusterError, ConfigError
from pytest_llmbench.core.files import write_text

# What sinfo -R shows of it fits on a screen.
_LONGEST_REASON = 160
_HEAD = "# Nodes that llmbench found bad. Delete a line to let its node back in.\n"


def read_quarantine(path: Path | None) -> dict[str, str]:
    """Read the reason of each node on the list; empty without a file, and while it is missing.

    Raises ConfigError if the file is unreadable.
    """
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--quarantine {path}: cannot be read: {error}") from error
    listed = {}
    for line in text.splitlines():
        before, _, comment = line.partition("#")
        if words := before.split():
            listed[words[0]] = " ".join([*words[1:], comment.strip()]).strip() or "no reason given"
    return listed


def remove_bad(bad: Mapping[str, str], settings: Settings, session: Session) -> Iterator[str]:
    """Put bad nodes on the quarantine list, and yield lines for people: on Slurm, also the commands that drain them.

    `bad` has the reason of each node with findings; a node that a check failed to judge stays out of it.
    """
    if settings.simulate is not None:
        yield from ([f"NOT QUARANTINED, with --llmbench-simulate {settings.simulate}: {', '.join(bad)}"] if bad else [])
        return
    if settings.quarantine is not None and bad:
        try:
            new = add_to_quarantine(settings.quarantine, bad, session.id)
        except OSError as error:
            yield f"NOT QUARANTINED: {settings.quarantine} cannot be written: {error}"
        else:
            yield f"in quarantine now ({settings.quarantine}): {', '.join(new) or 'no new node'}"
    for host, reason in bad.items() if settings.cluster == "slurm" else ():
        yield f"to drain it: {shlex.join(drain_command(host, reason, session.id))}"


def refuse_quarantined(hosts: Sequence[str], settings: Settings) -> None:
    """Check the nodes that a session got: an allocation of the user's may hold nodes in quarantine.

    Raises ClusterError if one of them is in quarantine.
    """
    listed = read_quarantine(settings.quarantine)
    barred = [f"{host} ({listed[host]})" for host in hosts if host in listed]
    if barred:
        raise ClusterError(
            f"in quarantine: {', '.join(barred)}. Use other nodes, or take the line out of {settings.quarantine}"
        )


def drain_command(host: str, reason: str, session: str) -> list[str]:
    """The command that keeps Slurm from giving a node to new jobs, with the reason that `sinfo -R` shows."""
    reason = " ".join(f"llmbench {session}: {reason}".split())[:_LONGEST_REASON]
    return ["scontrol", "update", f"nodename={host}", "state=drain", f"reason={reason}"]


def add_to_quarantine(path: Path, bad: Mapping[str, str], session: str) -> list[str]:
    """Add the nodes that are new to the list, and return their names. Sessions that write at once wait for each other.

    Raises OSError if writing it fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(PermissionError):  # it is another user's
            os.fchmod(lock, 0o666)  # whatever the umask: every user of the list takes its lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read_quarantine(path)
        text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
        new = [host for host in bad if host not in known]
        day = dt.datetime.now(tz=dt.UTC).date()
        lines = [f"{host}  # {day} {session}: {' '.join(bad[host].split())}\n" for host in new]
        if lines:
            write_text(path, text + ("" if text.endswith("\n") or not text else "\n") + "".join(lines))
    finally:
        os.close(lock)
    return new
