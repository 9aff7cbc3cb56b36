"""Check of the shared file system under the load of all nodes: rates, outliers, and correct bytes."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field, PositiveInt

from pytest_llmbench.checks.answers import one_per_host, read_answers
from pytest_llmbench.checks.base import Answer, CheckDefaults, CheckSettings, Fleet, deadline_of, options_of
from pytest_llmbench.checks.findings import NOT_COMPARED, Bounds, find_outliers
from pytest_llmbench.checks.storage.nodes.storage import BLOCK, StorageLoad
from pytest_llmbench.checks.storage.staging import finding
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import QuantityField, Strict

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
