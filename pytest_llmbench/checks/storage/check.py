"""Checks of the shared file system under the load of all nodes, and of the data that a training needs."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field, PositiveInt

from pytest_llmbench.checks.answers import dissenters, one_per_host, read_answers, read_per_host
from pytest_llmbench.checks.base import Answer, CheckDefaults, CheckSettings, Fleet, Site, deadline_of, options_of
from pytest_llmbench.checks.findings import NOT_COMPARED, Bounds, FindingMaker, SharedKind, find_outliers, make_finding
from pytest_llmbench.checks.storage.nodes.staging import StagedData
from pytest_llmbench.checks.storage.nodes.storage import BLOCK, StorageLoad
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import QuantityField, Strict

StorageKind = Literal["data_differs", "data_missing", "wrong_bytes"]
finding: FindingMaker[StorageKind | SharedKind] = make_finding

_MOUNT = "mount the file system on the node, or copy the data there"

_UNITS = {
    "write": "GB/s",  #: statistic storage.write: bytes that all nodes together, or one of them, wrote
    "read": "GB/s",  #: statistic storage.read: bytes of another node that were read
    "create": "ops/s",  #: statistic storage.create: small files made
    "stat": "ops/s",  #: statistic storage.stat: small files looked up
    "unlink": "ops/s",  #: statistic storage.unlink: small files removed
}
_ACTION = "look at the node's client of the file system, its mount options and its network, and at the servers"


class StorageOptions(Strict):
    """Options of the check."""

    folder: Path | None = None
    """Folder on the file system to measure; absent, the folder of the records."""
    size: QuantityField | None = None
    """Size that each node writes and reads; absent, 1 GiB, and 32 MiB on CPUs and at scale `smoke`."""
    streams: Annotated[int, Field(gt=0, le=64)] = 4
    """Number of threads of each node, each with a file of its own."""
    files: PositiveInt | None = None
    """Number of small files of each node; absent, 1000, and 100 on CPUs and at scale `smoke`."""
    tolerance: Annotated[float, Field(gt=0, le=1)] | None = None
    """Allowed shortfall of a node from the median (fraction). Default 0.3; not applied on CPUs and at scale `smoke`."""


class Storage(CheckDefaults):
    """Writes, reads of another node's files, and metadata, on all nodes at once."""

    name = family = "storage"
    scope: Literal["node", "cluster"] = "cluster"
    summary = "the shared file system under all nodes at once: bandwidth, small files, and bytes that come back right"
    options: type[Strict] = StorageOptions
    statistics: Mapping[str, str] = _UNITS
    deadline_s = 900.0

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, StorageOptions)
        large = fleet.site.is_full_gpu
        size = options.size or Quantity("1 GiB" if large else "32 MiB")
        config = {
            "folder": str(options.folder or fleet.folder),
            "name": uuid4().hex,
            "streams": options.streams,
            "blocks": max(1, round(size.to("B").value / BLOCK / options.streams)),
            "files": options.files or (1000 if large else 100),
        }
        limit = {"timeout_s": deadline_of(self, settings) / 2}
        probe = self.probe(settings, "storage:measure", {**config, **limit}, together=True)
        try:
            answers = read_answers(fleet.run([probe])[0], StorageLoad)
        finally:
            # Files of ranks that were killed.
            shutil.rmtree(f"{config['folder']}/llmbench-storage-{config['name']}", ignore_errors=True)
        facts, unjudged = one_per_host(answers)
        readings = [reading for host, load in facts.items() for reading in _make_readings(host, [load])]
        if facts and not unjudged:
            readings = [*_make_readings(None, list(facts.values())), *readings]
        tolerance = options.tolerance or (0.3 if large else 1.0)
        bounds = Bounds(fleet.site, settings)
        slow = find_outliers(readings, tolerance=tolerance, action=_ACTION)
        return Report(
            findings=(*_find_wrong_bytes(answers), *slow, *bounds.judge(readings, action=_ACTION)),
            readings=tuple(readings),
            unjudged=unjudged,
            unbounded=not bounds.covers(readings),
            notes=tuple(_make_notes(facts, unjudged, settings, tolerance)),
            evidence={"asked": config, "answers": facts},
        )


def _make_readings(host: str | None, loads: Sequence[StorageLoad]) -> Iterator[Reading]:
    """Rates of a node, or, without a host, of all nodes together, whose time is that of the slowest."""
    for statistic, unit in _UNITS.items():
        amount = sum(load.bytes / 1e9 if unit == "GB/s" else load.files for load in loads)
        value = amount / max(getattr(load, f"{statistic}_s") for load in loads)
        yield Reading(host=host, statistic=statistic, value=value, unit=unit, nodes=len(loads))


def _find_wrong_bytes(answers: Sequence[Answer[StorageLoad]]) -> Iterator[Finding]:
    for host, load in ((answer.host, answer.data) for answer in answers if answer.data is not None):
        writer = answers[load.read_from].host
        for where in load.wrong:
            message = f"read other bytes than {writer} wrote: {where}"
            action = "train on neither node before it is known which of the two, or the storage, damages data"
            #: finding wrong_bytes: other bytes were read than were written
            yield finding(host, f"file of {writer}", "wrong_bytes", Severity.ISOLATE, message, action)


def _make_notes(
    facts: Mapping[str, StorageLoad], unjudged: Mapping[str, str], settings: CheckSettings, tolerance: float
) -> Iterator[str]:
    if unjudged:
        yield "no total: some nodes gave no answer"
    if any(not load.direct for load in facts.values()):
        yield "the file system has no direct input and output: pages were dropped instead, and reads may be of a cache"
    if len(facts) == 1:
        yield "one node alone read what it had written itself"
    if not settings.references:
        yield "no reference bounds the rates"
    if tolerance == 1.0:
        yield NOT_COMPARED


class StagedPath(Strict):
    """A path that has to be there."""

    path: str
    """File, folder or glob pattern that must exist on every node."""
    count: PositiveInt | None = None
    """Smallest number of files or folders that the pattern must find."""
    min_bytes: PositiveInt | None = None
    """Smallest size of each file or folder, in bytes."""


class DataStagingOptions(Strict):
    """Options of the check."""

    paths: tuple[StagedPath, ...] = ()
    """Paths that must exist, in addition to those of the environments of the system's file."""
    most: PositiveInt = 2000
    """Largest number of files of each path that are compared between nodes."""


class DataStaging(CheckDefaults):
    """The data of the system's environments, and further paths, on every node."""

    name = "data_staging"
    family = "storage"
    summary = "data sets and paths of the system's file: there, readable, and the same on all nodes"
    options: type[Strict] = DataStagingOptions

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, DataStagingOptions)
        of_site, notes = _list_paths(fleet.site)
        paths = {staged.path: staged for staged in (*of_site, *options.paths)}
        if not paths:
            skip = "neither the system's environments nor the option `paths` name any data"
            return Report(skip=skip, notes=tuple(notes))
        config = {"paths": [staged.model_dump() for staged in paths.values()], "most": options.most}
        probe = self.probe(settings, "staging:look", config, name="data-staging")
        facts, silent = read_per_host(fleet.run([probe])[0], StagedData, {"paths": list(paths)})
        findings: list[Finding] = []
        unjudged: dict[str, str] = {}
        for path in paths:
            files = {host: fact.paths[path] for host, fact in facts.items()}
            right = {host: listing for host, listing in files.items() if not listing.wrong}
            #: finding data_missing: data of the system's file are missing or unreadable
            findings += [
                _make_finding(host, path, "data_missing", listing.wrong)
                for host, listing in files.items()
                if listing.wrong
            ]
            odd = dissenters({host: listing.digest for host, listing in right.items()})
            if odd is None:
                reason = f"{path} differs between nodes, and no majority shows the right content"
                unjudged |= dict.fromkeys(right, reason)
            for host in odd or []:
                usual = next(listing for other, listing in right.items() if other not in (odd or []))
                message = (
                    f"holds {right[host].files} files of {right[host].bytes:,} bytes; on most nodes names or sizes are "
                    f"others: {usual.files} files of {usual.bytes:,} bytes"
                )  #: finding data_differs: data are not those of most nodes
                findings.append(_make_finding(host, path, "data_differs", message))
            if any(not listing.whole for listing in right.values()):
                notes.append(f"{path}: the first {options.most} files were compared, there are more")
        return Report(
            findings=tuple(findings), unjudged={**unjudged, **silent}, notes=tuple(notes), evidence={"facts": facts}
        )


def _list_paths(site: Site) -> tuple[list[StagedPath], list[str]]:
    """Paths that the environments name, and notes on those that are hidden from outside."""
    staged, notes = [], []
    for name, environment in site.environments.items():
        paths = [path for path in (environment.data, *environment.paths.values()) if path is not None]
        if environment.container is not None and paths:
            notes.append(f"{name}: its paths are inside its container, and were not checked")
            continue
        staged += [StagedPath(path=path) for path in paths if path.startswith("/")]
        # Such as the name of a model on a hub, or a variable of a shell on the node.
        notes += [f"{name}: {path} is not an absolute path, and was skipped" for path in paths if path[:1] != "/"]
    return staged, notes


def _make_finding(host: str, path: str, kind: StorageKind, message: str) -> Finding:
    return finding(host, path, kind, Severity.CONFIGURE, message, _MOUNT)
