"""Folders of the nodes: room on the disks, the session's shared folder, and folders of compiled kernels."""

import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.host.base import (
    HostCheck,
    HostKind,
    find_below,
    finding,
    is_network,
    kind_of,
    variables,
)
from pytest_llmbench.checks.host.nodes.folders import LAG_S, LOOK_S, KernelCaches, Room, Rooms, SharedView
from pytest_llmbench.core.files import read_text, write_text
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

_CLEAN = "clean the folder up, or make the file system larger"
_HEAD = "head"
_CACHES = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR")


class DiskOptions(Strict):
    """Required free space in each folder."""

    scratch: str | None = None
    """Local folder of each node for large files, where it has one."""
    free_gib: NonNegativeFloat = 1.0
    """Space in GiB that must be free for this user in each folder."""
    free_inodes_percent: Annotated[float, Field(ge=0, le=100)] = 5.0
    """Share of the inodes that must be free, in %."""


class Disk(HostCheck):
    """Room in the folder for temporary files, in local scratch and in the shared folder."""

    name = "disk"
    summary = "temporary, scratch and shared folders: free bytes and inodes, and writable"
    options: type[Strict] = DiskOptions
    #: statistic disk.disk_free: space that this user may still write, in each folder
    statistics: Mapping[str, str] = {"disk_free": "GiB"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, DiskOptions)
        folders = {"shared": str(fleet.folder)} | ({"scratch": options.scratch} if options.scratch else {})
        probe = self.probe(settings, "folders:disk", {"folders": folders})
        facts, unjudged = read_per_host(fleet.run([probe])[0], Rooms)
        rooms = [(host, name, room) for host, node in facts.items() for name, room in node.folders.items()]
        readings = [
            Reading(host=host, subject=name, statistic="disk_free", value=room.free_bytes / 2**30, unit="GiB")
            for host, name, room in rooms
            if room.free_bytes is not None
        ]
        findings = [
            finding(host, room.path, kind, Severity.CONFIGURE, message, action)
            for host, name, room in rooms
            for kind, message, action in check_room(name, room, options)
        ]
        findings += find_below(readings, fleet.site, settings, _CLEAN)
        return Report(
            findings=tuple(findings),
            readings=tuple(readings),
            unjudged=unjudged,
            notes=("quotas are only noticed where they are used up",),
            evidence={"folders": {host: node.folders for host, node in facts.items()}},
        )


def check_room(name: str, room: Room, options: DiskOptions) -> Iterator[tuple[HostKind, str, str]]:
    """Faults of one folder of a node: kind, message, action."""
    if room.why is not None:  #: finding not_writable: a folder cannot be written
        yield "not_writable", f"the {name} folder cannot be written: {room.why}", "make it writable for this user"
    if room.free_bytes is None:
        return
    free_gib = room.free_bytes / 2**30
    if free_gib < options.free_gib:  #: finding disk_full: too little is free in a folder
        yield "disk_full", f"the {name} folder has {free_gib:.2f} GiB free and needs {options.free_gib:g} GiB", _CLEAN
    # A file system that makes inodes as it needs them has none to count.
    percent = 100 * room.free_inodes / room.inodes if room.inodes else 100.0
    if percent < options.free_inodes_percent:  #: finding no_inodes: too few inodes are free in a folder
        needed = f"{options.free_inodes_percent:g} %"
        yield "no_inodes", f"the {name} folder has {percent:.1f} % of its inodes free and needs {needed}", _CLEAN


class SharedFolder(HostCheck):
    """Check that every node sees this machine's folder for runs and logs."""

    name = "shared_folder"
    summary = "the folder of the session is the same on all nodes and here"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        folder, token = fleet.folder / "shared", secrets.token_hex(8)
        write_text(folder / _HEAD, token)
        config = {"folder": str(folder), "name": _HEAD, "mark": token}
        probe = self.probe(settings, "folders:shared", config, name="shared-folder")
        views, unjudged = read_per_host(fleet.run([probe])[0], SharedView)
        findings = find_strangers(views, token, _read_tokens(folder, views, token), folder)
        notes = ("a node that does not see the folder at all cannot answer, and is an ERROR",) if unjudged else ()
        return Report(findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"nodes": views})


def _read_tokens(folder: Path, views: Mapping[str, SharedView], token: str) -> dict[str, str | None]:
    """Read the files of the hosts that have read this machine's token; wait a little for wrong ones."""
    hosts = [host for host, view in views.items() if view.read == token]
    deadline = time.monotonic() + LAG_S
    while True:
        texts = {host: read_text(folder / host) for host in hosts}
        if all(text == f"{token} {host}" for host, text in texts.items()) or time.monotonic() > deadline:
            return texts
        time.sleep(LOOK_S)


def find_strangers(
    views: Mapping[str, SharedView], token: str, texts: Mapping[str, str | None], folder: Path
) -> Iterator[Finding]:
    """Findings about nodes that have another folder under the same path."""
    action = "mount one file system at this path on all nodes, which caches attributes for seconds at most"
    for host, view in views.items():
        place = f"{folder} ({kind_of(view.mount)} there)"
        if view.read == token and texts[host] == f"{token} {host}":
            continue
        message = f"this machine does not see what the node wrote into {place}"
        if view.read != token:
            message = f"{place} does not hold what this machine wrote into it"
        #: finding other_folder: a node sees another folder under the session's path
        yield finding(host, "shared folder", "other_folder", Severity.CONFIGURE, message, action)


class JitCache(HostCheck):
    """Folders in which PyTorch, Triton and CUDA keep compiled kernels: shared ones make jobs wait for each other."""

    name = "jit_cache"
    summary = "folders of compiled kernels: not shared between nodes, and filled"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        folders = {  # of environments without a container, for their own ranks
            f"{name} of {where}": env[name]
            for where, env in variables(fleet.site, bare=True).items()
            for name in _CACHES
            if where != "env" and name in env
        }
        probe = self.probe(settings, "folders:caches", {"folders": folders})
        caches, unjudged = read_per_host(fleet.run([probe])[0], KernelCaches)
        severity = Severity.CONFIGURE if fleet.site.gpus_per_node else Severity.MONITOR
        shared = find_shared(caches, severity) if len(fleet.hosts) > 1 else ()
        return Report(findings=(*shared, *find_cold(caches)), unjudged=unjudged, evidence={"caches": caches})


def find_shared(caches: Mapping[str, KernelCaches], severity: Severity) -> Iterator[Finding]:
    """Findings about folders on a file system that other nodes may have mounted, too."""
    for host, node in caches.items():
        on_network = [
            f"{name} ({cache.folder}, {kind_of(cache.mount)})"
            for name, cache in node.folders.items()
            if is_network(cache.mount)
        ]
        if on_network:
            message = f"shares {', '.join(on_network)} with the nodes that mount it: "
            message += "jobs that start at once may hang in the compiler"
            action = "set these variables in `env` of the system's file to folders on the nodes' own disks"
            #: finding shared_cache: nodes share a folder of compiled kernels
            yield finding(host, "compiled kernels", "shared_cache", severity, message, action)


def find_cold(caches: Mapping[str, KernelCaches]) -> Iterator[Finding]:
    """Hints about empty folders."""
    for host, node in caches.items():
        empty = [name for name, cache in node.folders.items() if not cache.warm]
        if empty:
            message = f"nothing is compiled yet in {', '.join(empty)}: the first run compiles"
            action = "set llmbench_first_run_alone = yes"  #: finding cold_cache: nothing is compiled yet
            yield finding(host, "compiled kernels", "cold_cache", Severity.MONITOR, message, action)
