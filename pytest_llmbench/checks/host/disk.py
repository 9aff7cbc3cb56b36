"""Room on the disks that a job writes to."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.host.base import HostCheck, below, host_probe
from pytest_llmbench.checks.host.kinds import HostKind, finding
from pytest_llmbench.checks.host.nodes.folders import Room, Rooms
from pytest_llmbench.core.record.health import Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

_ACTION = "clean the folder up, or make the file system larger"


class DiskOptions(Strict):
    """Required free space in each folder."""

    scratch: str | None = None
    """The node's own folder for large files, where it has one."""
    free_gib: NonNegativeFloat = 1.0
    """GiB that must be free for this user in each folder."""
    free_inodes_percent: Annotated[float, Field(ge=0, le=100)] = 5.0
    """Share of the inodes that must be free, %."""


class Disk(HostCheck):
    """Room in the folder for temporary files, in local scratch and in the shared folder."""

    name = "disk"
    summary = "temporary, scratch and shared folders: free bytes and inodes, and writable"
    options: type[Strict] = DiskOptions
    #: statistic disk.disk_free: space that this user may still write, in each folder
    statistics: Mapping[str, str] = {"disk_free": "GiB"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node."""
        options = options_of(self, settings, DiskOptions)
        folders = {"shared": str(fleet.folder)} | ({"scratch": options.scratch} if options.scratch else {})
        probe = host_probe(self, settings, "disk", "folders:disk", {"folders": folders})
        facts, unjudged = read_per_host(fleet.run([probe])[0], Rooms)
        rooms = [(host, name, room) for host, told in facts.items() for name, room in told.folders.items()]
        readings = [
            Reading(host=host, subject=name, statistic="disk_free", value=room.free_bytes / 2**30, unit="GiB")
            for host, name, room in rooms
            if room.free_bytes is not None
        ]
        findings = [
            finding(host, room.path, kind, Severity.CONFIGURE, text, action)
            for host, name, room in rooms
            for kind, text, action in wrong_with(name, room, options)
        ]
        findings += below(readings, fleet.site, settings, _ACTION)
        return Report(
            findings=tuple(findings),
            readings=tuple(readings),
            unjudged=unjudged,
            notes=("quotas are only noticed where they are used up",),
            evidence={"folders": {host: told.folders for host, told in facts.items()}},
        )


def wrong_with(name: str, room: Room, options: DiskOptions) -> Iterator[tuple[HostKind, str, str]]:
    """Findings about one folder of a node: kind, message, action."""
    if room.why is not None:  #: finding not_writable: a folder cannot be written
        yield "not_writable", f"the {name} folder cannot be written: {room.why}", "make it writable for this user"
    if room.free_bytes is None:
        return
    free_gib = room.free_bytes / 2**30
    if free_gib < options.free_gib:  #: finding disk_full: too little is free in a folder
        yield "disk_full", f"the {name} folder has {free_gib:.2f} GiB free and needs {options.free_gib:g} GiB", _ACTION
    # A file system that makes inodes as it needs them has none to count.
    if room.inodes:
        percent = 100 * room.free_inodes / room.inodes
        if percent < options.free_inodes_percent:  #: finding no_inodes: too few files can still be made in a folder
            asked = f"{options.free_inodes_percent:g} %"
            yield "no_inodes", f"the {name} folder has {percent:.1f} % of its inodes free and needs {asked}", _ACTION
