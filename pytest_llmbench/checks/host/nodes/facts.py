"""Facts of a node as a host: limits, memory, settings and software, for all checks that judge hosts. Quick."""

import ctypes
import os
import re
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import NonNegativeInt, PositiveInt

from pytest_llmbench.checks.host.nodes.files import names_in
from pytest_llmbench.core.files import read_text
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.files import wrong_with
from pytest_llmbench.workloads.node.hardware import redirecting_bridges
from pytest_llmbench.workloads.node.installed import installed
from pytest_llmbench.workloads.node.machine import node_software
from pytest_llmbench.workloads.node.processes import ask, output_of
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_COMMAND_S = 10.0
_KEPT = 20_000
# Programs that print their version in one line, by the name of their software.
_VERSION_COMMANDS = {
    "ofed": ("ofed_info", "-s"),
    "docker": ("docker", "--version"),
    "enroot": ("enroot", "version"),
    "apptainer": ("apptainer", "--version"),
    "nvidia-container-cli": ("nvidia-container-cli", "--version"),
}
_RUNTIMES = {
    "docker": ("docker", "info"), "enroot": ("enroot", "version"), "apptainer": ("apptainer", "--version"),
    "pyxis": ("srun", "--help"),
}  # fmt: skip
_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}


class ResourceLimits(ProbeAnswer):
    """Limits of a process by name; None for unlimited."""

    nofile: int | None
    memlock: int | None
    nproc: int | None


class ProcessLimits(ProbeAnswer):
    """Limits of a rank's process, and facts to judge them by."""

    soft: ResourceLimits
    hard: ResourceLimits
    cpus: int | None  # of the node
    uid: int  # the effective user
    capabilities: int  # the effective capabilities as a bit mask


class HostMemorySizes(ProbeAnswer):
    """Memory of a node, in bytes."""

    total: PositiveInt
    available: NonNegativeInt
    swapped: NonNegativeInt  # swapped out


class KernelTuning(ProbeAnswer):
    """Settings that cost speed; None for a setting that the kernel lacks."""

    iommu_options: tuple[str, ...]  # on the kernel's command line
    transparent_hugepage: str | None  # such as `always [madvise] never`
    numa_balancing: str | None  # `0` where it is off
    numa_nodes: int
    governors: Mapping[str, int]  # number of CPUs by governor
    iommu_groups: Mapping[str, int]  # number of groups by type
    acs: tuple[str, ...] | None  # PCI bridges that redirect traffic between devices; None where only root may look


class RuntimeReply(ProbeAnswer):
    """The reply of a container runtime."""

    command: str
    cdi: tuple[str, ...]  # files that describe GPUs to it
    nvidia_container_cli: str | None  # path of the program that gives containers their GPUs
    code: int | None  # exit status; None if it was ended
    text: str


class HostFacts(ProbeAnswer):
    """A node as a host."""

    limits: ProcessLimits
    memory: HostMemorySizes
    interfaces: Mapping[str, str]  # network interfaces and their state
    infiniband: tuple[str, ...]  # names of the InfiniBand devices
    tuning: KernelTuning
    software: Mapping[str, str]  # versions by name
    containers: Mapping[str, RuntimeReply]  # replies of the runtimes in the config
    paths: Mapping[str, str]  # a fault of each path of the config; empty for a good one


def facts(context: RankContext, log: ProbeLog) -> HostFacts:
    """Answer with the facts that the host checks judge.

    `context.config` has `runtimes`, the container runtimes to ask for, and `paths`, the files and folders to look for.
    The phase names a path that hangs because its file server is silent.
    """
    root = Path("/")
    log.phase("limits, memory and tuning")
    memory = psutil.virtual_memory()
    sizes = HostMemorySizes(total=memory.total, available=memory.available, swapped=psutil.swap_memory().used)
    own, tuned = limits(root), tuning(root)
    log.phase("software")
    versions = software(root)
    containers = {}
    for runtime in context.config["runtimes"]:
        log.phase(f"container runtime {runtime}")
        containers[runtime] = container_runtime(runtime, root)
    paths = {}
    for path in context.config["paths"]:
        log.phase(f"look at {path}")
        paths[path] = wrong_with(path)
    return HostFacts(
        limits=own, memory=sizes, interfaces=interfaces(root),
        infiniband=tuple(names_in(root / "sys/class/infiniband")), tuning=tuned, software=versions,
        containers=containers, paths=paths,
    )  # fmt: skip


def software(root: Path) -> dict[str, str]:
    """Versions of the installed software by name. PyTorch's is read without importing it."""
    versions = {
        **node_software(),
        **installed(),
        "driver's cuda": driver_cuda(),
        "cuda toolkit": toolkit(read_text(root / "usr/local/cuda/version.json") or ""),
        "libnccl": library_version(_run("ldconfig", "-p"), "libnccl.so.2"),
        **{name: _run(*argv).partition("\n")[0] for name, argv in _VERSION_COMMANDS.items()},
    }
    return {name: version for name, version in versions.items() if version}


def driver_cuda() -> str | None:
    """The highest CUDA that the driver can run, such as `12.8`; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def toolkit(text: str) -> str | None:
    """The version of a CUDA toolkit from the text of its `version.json`; None without one."""
    with suppress(ValueError, KeyError, TypeError):
        return str(read_json(text)["cuda"]["version"])
    return None


def library_version(cache: str, name: str) -> str | None:
    """The version at the end of a library's file name, by the text of `ldconfig -p`; None without the library."""
    match = re.search(rf"^\s*{re.escape(name)} \(.*\) => (\S+)$", cache, re.MULTILINE)
    # The name itself is a link to the file of this very version.
    return Path(match[1]).resolve().name.partition(".so.")[2] or None if match else None


def container_runtime(runtime: str, root: Path) -> RuntimeReply:
    """Ask a container runtime, and look for the parts that GPUs need."""
    argv = _RUNTIMES[runtime]
    folders = (root / "etc/cdi", root / "var/run/cdi")
    code: int | None = None
    try:
        result = ask(argv, os.environ, _COMMAND_S)
        code, text = result.code, result.text if result.code is not None else f"no answer within {_COMMAND_S:g} s"
    except OSError as error:
        text = f"it cannot be run: {error.strerror}"
    return RuntimeReply(
        command=" ".join(argv), cdi=tuple(sorted(str(path) for folder in folders for path in folder.glob("*nvidia*"))),
        nvidia_container_cli=shutil.which("nvidia-container-cli"), code=code, text=text[:_KEPT],
    )  # fmt: skip


def _run(*argv: str) -> str:
    return output_of(argv, os.environ, _COMMAND_S) or ""


def tuning(root: Path) -> KernelTuning:
    """Read the kernel's settings."""
    cpus, memory = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    return KernelTuning(
        iommu_options=iommu_options(read_text(root / "proc/cmdline") or ""),
        transparent_hugepage=read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        numa_balancing=read_text(root / "proc/sys/kernel/numa_balancing"),
        numa_nodes=len(list(memory.glob("node[0-9]*"))),
        governors=_count_texts(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")),
        iommu_groups=_count_texts((root / "sys/kernel/iommu_groups").glob("*/type")),
        acs=redirecting_bridges(root / "sys"),
    )


def iommu_options(cmdline: str) -> tuple[str, ...]:
    """The options about the IOMMU on the kernel's command line; the others may be confidential."""
    return tuple(word for word in cmdline.split() if "iommu" in word)


def _count_texts(files: Iterable[Path]) -> dict[str, int]:
    return dict(Counter(text for path in files if (text := read_text(path)) is not None))


def limits(root: Path) -> ProcessLimits:
    """Read the limits of this process."""
    pairs = {name: resource.getrlimit(number) for name, number in _LIMITS.items()}
    soft, hard = (
        ResourceLimits(**{name: None if pair[i] == resource.RLIM_INFINITY else pair[i] for name, pair in pairs.items()})
        for i in range(2)
    )
    mask = capabilities(read_text(root / "proc/self/status") or "")
    return ProcessLimits(soft=soft, hard=hard, cpus=os.cpu_count(), uid=os.geteuid(), capabilities=mask)


def capabilities(status: str) -> int:
    """The effective capabilities of a process as a bit mask, from the text of its `/proc/PID/status`; 0 without one."""
    masks = (line.partition(":")[2] for line in status.splitlines() if line.startswith("CapEff:"))
    return int(next(masks, "0").strip() or "0", 16)


def interfaces(root: Path) -> dict[str, str]:
    """Network interfaces and their state: `up`, `down`, or `unknown` where the driver keeps none, as for `lo`."""
    folder = root / "sys/class/net"
    return {name: read_text(folder / name / "operstate") or "unknown" for name in names_in(folder)}
