"""The shared folder: what one node writes, the others and this machine have to read."""

import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, host_probe, kind_of
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.checks.host.nodes.files import text_of
from pytest_llmbench.checks.host.nodes.folders import SharedView
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.record.health import Finding, Report, Severity

_HEAD = "head"
# What a node writes, this machine sees a moment later.
_LAG_S = 3.0
_LOOK_S = 0.1


class SharedFolder(HostCheck):
    """Whether every node sees the folder of this machine that runs and their logs lie in."""

    name = "shared_folder"
    summary = "the folder of the session is the same on all nodes and here"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Write here and read there, and the other way around."""
        folder, token = fleet.folder / "shared", secrets.token_hex(8)
        write_text(folder / _HEAD, token)
        asked = {"folder": str(folder), "name": _HEAD, "token": token}
        probe = host_probe(self, settings, "shared-folder", "folders:shared", asked)
        facts, unjudged = read_per_host(fleet.run([probe])[0], SharedView)
        findings = strangers(facts, token, written(folder, facts, token), folder)
        lost = ("a node that does not see the folder at all cannot answer, and is an ERROR",) if unjudged else ()
        return Report(findings=tuple(findings), unjudged=unjudged, notes=lost, evidence={"nodes": facts})


def written(folder: Path, facts: Mapping[str, SharedView], token: str) -> dict[str, str | None]:
    """Texts of the hosts that have read this machine's token, as it reads them; waits a little for wrong ones."""
    hosts = [host for host, told in facts.items() if told.read == token]
    deadline = time.monotonic() + _LAG_S
    while True:
        found = {host: text_of(folder / host) for host in hosts}
        if all(text == f"{token} {host}" for host, text in found.items()) or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_S)


def strangers(
    facts: Mapping[str, SharedView], token: str, found: Mapping[str, str | None], folder: Path
) -> Iterator[Finding]:
    """Findings about nodes that have another folder under the same path."""
    for host, told in facts.items():
        there = f"{folder} ({kind_of(told.mount)} there)"
        if told.read != token:
            message = f"{there} does not hold what this machine wrote into it"
        elif found[host] != f"{token} {host}":
            message = f"this machine does not see what the node wrote into {there}"
        else:
            continue  #: finding other_folder: a node sees another folder under the session's path
        action = "mount one file system at this path on all nodes, which caches attributes for seconds at most"
        yield finding(host, "shared folder", "other_folder", Severity.CONFIGURE, message, action)
