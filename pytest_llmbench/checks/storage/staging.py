"""Data that a training needs: is it on every node, readable, and the same everywhere?"""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import PositiveInt

from pytest_llmbench.checks.answers import dissenters, read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, Probe, Site, deadline_of, options_of
from pytest_llmbench.checks.storage.kinds import StorageKind, finding
from pytest_llmbench.checks.storage.nodes.staging import StagedData, StagedFiles
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_MOUNT = "mount the file system on the node, or copy the data there"


class StagedPath(Strict):
    """A path that has to be there."""

    path: str
    """A list of paths that must exist, in addition to those of the environments of the system's file."""
    count: PositiveInt | None = None
    """Smallest number of files or folders that the pattern must find."""
    min_bytes: PositiveInt | None = None
    """Smallest size of each."""


class DataStagingOptions(Strict):
    """Options of the check."""

    paths: tuple[StagedPath, ...] = ()
    """Paths that must exist, in addition to those of the environments of the system's file."""
    most: PositiveInt = 2000
    """Files of each path that are compared between nodes."""


class DataStaging(NodeCheck):
    """The data of the system's environments, and further paths, on every node."""

    name = "data_staging"
    family = "storage"
    summary = "data sets and paths of the system's file: there, readable, and the same on all nodes"
    options: type[Strict] = DataStagingOptions

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Look on every node, and compare."""
        options = options_of(self, settings, DataStagingOptions)
        named, notes = _named(fleet.site)
        paths = list({each.path: each for each in (*named, *options.paths)}.values())
        if not paths:
            return Report(skip="neither the system's environments nor the option `paths` name any data", notes=notes)
        probe = Probe(
            name="data-staging",
            entry="pytest_llmbench.checks.storage.nodes.staging:look",
            config={"paths": [each.model_dump() for each in paths], "most": options.most},
            deadline_s=deadline_of(self, settings),
        )
        asked = {"paths": [each.path for each in paths]}
        facts, silent = read_per_host(fleet.run([probe])[0], StagedData, asked)
        findings: list[Finding] = []
        undecided: dict[str, str] = {}
        for each in paths:
            told = {host: fact.paths[each.path] for host, fact in facts.items()}
            findings += list(_wrong(each.path, told))
            right = {host: look for host, look in told.items() if not look.wrong}
            odd = dissenters({host: look.digest for host, look in right.items()})
            if odd is None:
                why = f"{each.path} differs between nodes, and no majority shows the right content"
                undecided |= dict.fromkeys(right, why)
            else:
                findings += list(_differs(each.path, right, odd))
            notes += tuple(_cut(each.path, right, options.most))
        return Report(
            findings=tuple(findings), unjudged={**undecided, **silent}, notes=notes, evidence={"facts": facts}
        )


def _named(site: Site) -> tuple[list[StagedPath], tuple[str, ...]]:
    """Paths that the environments name, and notes on those that cannot be seen from outside."""
    found, notes = [], []
    for name, environment in site.environments.items():
        paths = [path for path in (environment.data, *environment.paths.values()) if path is not None]
        if environment.container is not None and paths:
            notes.append(f"{name}: its paths are inside its container, and were not checked")
            continue
        found += [StagedPath(path=path) for path in paths if path.startswith("/")]
        # Such as the name of a model on a hub, or what a shell on the node would fill in.
        notes += [f"{name}: {path} is not an absolute path, and was skipped" for path in paths if path[:1] != "/"]
    return found, tuple(notes)


def _wrong(path: str, told: Mapping[str, StagedFiles]) -> Iterator[Finding]:
    for host, look in told.items():
        if look.wrong:  #: finding data_missing: data that the system's file names are not there, or not readable
            yield _finding(host, path, "data_missing", look.wrong)


def _differs(path: str, told: Mapping[str, StagedFiles], odd: Sequence[str]) -> Iterator[Finding]:
    for host in odd:
        usual = next(look for host, look in told.items() if host not in odd)
        message = (
            f"holds {told[host].files} files of {told[host].bytes:,} bytes; on most nodes names or sizes are "
            f"others: {usual.files} files of {usual.bytes:,} bytes"
        )
        yield _finding(host, path, "data_differs", message)  #: finding data_differs: data are not those of most nodes


def _finding(host: str, path: str, kind: StorageKind, message: str) -> Finding:
    return finding(host, path, kind, Severity.CONFIGURE, message, _MOUNT)


def _cut(path: str, told: Mapping[str, StagedFiles], most: int) -> Iterator[str]:
    if any(not look.whole for look in told.values()):
        yield f"{path}: the first {most} files were compared, there are more"
