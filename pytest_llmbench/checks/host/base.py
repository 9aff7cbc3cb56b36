"""Shared parts of the host checks: one probe for the facts of all, nodes that must be alike, kinds of file systems."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckDefaults, CheckSettings, Fleet, Site
from pytest_llmbench.checks.findings import Bounds, FindingMaker, SharedKind, make_finding
from pytest_llmbench.checks.host.nodes.facts import HostFacts
from pytest_llmbench.checks.host.nodes.files import Mount
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import Finding, Reading

HostKind = Literal[
    "clock_not_kept", "clock_skew", "cold_cache", "container_runtime", "cuda", "differs", "disk_full", "limit",
    "missing_device", "missing_file", "no_inodes", "not_writable", "other_folder", "shared_cache", "tuning",
]  # fmt: skip
finding: FindingMaker[HostKind | SharedKind] = make_finding

FEW = 4  # names in a message
# Variables that name files or folders to be read.
_READ = (
    "CUDA_HOME", "CUDA_PATH", "CURL_CA_BUNDLE", "LD_PRELOAD", "NCCL_CONF_FILE", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE",
    "NCCL_TUNER_CONFIG_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TRITON_PTXAS_PATH",
)  # fmt: skip
_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
# These run in user space and are layers over a local disk.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.squashfuse", "fuse.squashfuse_ll"}
# A touched file gets the time of the server, or of this machine alone. Clients of other file systems may set their own.
_ONE_CLOCK = {"nfs", "nfs4", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}


class HostCheck(CheckDefaults):
    """Base class of host checks."""

    family = "host"
    deadline_s = 60.0
    entry: str | None = None

    def ask(self, fleet: Fleet, settings: CheckSettings) -> tuple[dict[str, HostFacts], dict[str, str]]:
        """Ask every node once for the facts of all host checks: facts by host, and reasons for missing ones."""
        containers = [environment.container for environment in fleet.site.environments.values()]
        runtimes = sorted({container.runtime for container in containers if container is not None})
        paths = sorted(named_paths(fleet.site))
        probe = self.probe(settings, "facts:facts", {"runtimes": runtimes, "paths": paths}, name="host-facts")
        return read_per_host(fleet.once(probe), HostFacts, asked={"containers": runtimes, "paths": paths})


def named_paths(site: Site) -> dict[str, str]:
    """Absolute paths on the nodes that the system's file names, with the key that names each.

    Paths inside the images of containers are left out.
    """
    paths: dict[str, str] = {}
    for where, env in variables(site, bare=True).items():
        for name in _READ:
            for path in env.get(name, "").replace(":", " ").split():
                paths.setdefault(path, f"{name} of {where}")
    for where, environment in site.environments.items():
        container = environment.container
        if container is None:
            keys = [("root", environment.root or ""), ("env_file", environment.env_file or "")]
        else:
            mounts = [("mounts", mount.partition(":")[0]) for mount in container.mounts]
            keys = [("image", container.image), *mounts]
        for key, path in keys:
            paths.setdefault(path, f"{key} of environments.{where}")
    return {path: where for path, where in paths.items() if path.startswith("/")}


def variables(site: Site, *, bare: bool = False) -> dict[str, Mapping[str, str]]:
    """Environment variables that the system's file sets, by key; `bare` leaves out those of containers."""
    return {"env": site.env} | {
        f"environments.{name}": environment.env
        for name, environment in site.environments.items()
        if environment.container is None or not bare
    }


def find_below(readings: Sequence[Reading], site: Site, settings: CheckSettings, action: str) -> Iterator[Finding]:
    """Findings for readings that miss a reference of this system, at any scale."""
    return Bounds(site, settings, any_scale=True).judge(readings, action=action)


def find_differing(values: Mapping[str, str]) -> dict[str, str]:
    """Describe each host that stands out: its value, the usual one, and the hosts that have it.

    A value that more hosts have than any other is right. Without such a group, every host stands out, and all
    groups are named: the right one is unknown.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for host, value in values.items():
        groups[value].append(host)
    if len(groups) < 2:
        return {}
    ranked = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    (usual, hosts), (_, second) = ranked[:2]
    if len(hosts) > len(second):
        return {host: f"{value}; {usual} on {listed(hosts, FEW)}" for value, others in ranked[1:] for host in others}
    division = "; ".join(f"{value} on {listed(others, FEW)}" for value, others in ranked)
    return {host: f"{value}; no majority of the nodes agrees: {division}" for host, value in values.items()}


def name_sizes(sizes: Mapping[str, int], tolerance: float) -> dict[str, str]:
    """Name sizes in bytes by host as GiB, with the same words for sizes that are close to each other.

    A size may be larger than the smallest of its group by the tolerance, a fraction.
    """
    named: dict[str, str] = {}
    smallest, name = 0, ""
    for host, size in sorted(sizes.items(), key=lambda item: item[1]):
        if not name or size > smallest * (1 + tolerance):
            smallest, name = size, f"{size / 2**30:.2f} GiB"
        named[host] = name
    return named


def is_network(mount: Mount | None) -> bool:
    """True if other nodes may have the same file system; an unknown kind counts as local."""
    kind = kind_of(mount)
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def has_one_clock(mount: Mount | None) -> bool:
    """True if every touched file there gets the time of one clock: the server's, or this machine's own."""
    return kind_of(mount) in _ONE_CLOCK


def kind_of(mount: Mount | None) -> str:
    """The kind of file system, such as `nfs4`."""
    return mount.type if mount is not None else "unknown"
