"""Check of the data that a training needs: readable, and the same on every node."""

from typing import Literal

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, Site, options_of
from pytest_llmbench.checks.findings import FindingMaker, SharedKind, make_finding
from pytest_llmbench.checks.storage.nodes.staging import StagedData
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

StorageKind = Literal["data_differs", "data_missing", "wrong_bytes"]
finding: FindingMaker[StorageKind | SharedKind] = make_finding

_MOUNT = "mount the file system on the node, or copy the data there"


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
