"""Rules about the transport that NCCL used: each finding has NCCL's line as evidence, and a cure.

They name the faults that slow all GPUs alike, which stay hidden when nodes are compared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pytest_llmbench.core.quantity import counted
from pytest_llmbench.core.record.nccl import Fact, NcclLog
from pytest_llmbench.judging.physics import NVLS_FROM

Level = Literal["fail", "warn"]
TransportKind = Literal[
    "acs", "far_cores", "few_cores", "lost_nics", "mnnvl_off", "no_gdr", "no_p2p", "nvls_off", "over_tcp",
    "slow_setting",
]  # fmt: skip

# Networks of plain TCP. GCP's FastSocket is one too, and meant to be.
_TCP = ("Socket",)
# The share of its expectation that all_reduce misses without NVLS.
_NVLS_SHARE = 0.85
_SHOWN = 3
FAR_CORES = "the process runs on cores of another socket and NUMA node than that of its GPU"
FAR_CORES_CURE = "bind each rank to cores near its GPU: --gpu-bind=closest or --cpu-bind of srun, numactl, taskset"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """Facts about a machine, for the rules. None means unknown: a rule that needs such a fact reports nothing."""

    gpus: int = 0  # of a node
    nodes: int = 1
    nvlink: bool | None = None  # whether NVLink joins the GPUs of a node
    all_to_all: bool | None = None  # whether it joins every two of them
    nvlink_version: int | None = None
    nics: int | None = None  # ports of a node that carry collectives
    fast_ports: tuple[str, ...] | None = None  # active ports of InfiniBand, RoCE or EFA
    near: bool | None = None  # whether each GPU has its NIC behind the same PCIe switch
    virtual: bool | None = None  # whether the node is a virtual machine
    multicast: bool | None = None  # whether the driver offers multicast over NVLink, which NVLS needs
    rack: int | None = None  # ranks of its domain in a rack of NVL72; None elsewhere
    # NVLink domains of all nodes; None where communicators are of some of them.
    domains: int | None = None
    cores: int | None = None  # on which the ranks of the node may run, all together
    far: int = 0  # ranks that may run only on another socket than that of their GPU
    acs: tuple[str, ...] = ()  # PCI bridges that redirect traffic between devices
    # Measured rates as a share of what is expected of this machine, by operation.
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def slow(self) -> bool | None:
        """Whether any operation is below its expectation; None if all was left unjudged."""
        return min(self.shares.values()) < _NVLS_SHARE if self.shares else None


class TransportFinding(NamedTuple):
    """A finding about the transport."""

    kind: TransportKind
    level: Level
    message: str
    settings: tuple[str, ...]  # variables that may explain it, as `NAME=value`
    line: str  # NCCL's, the evidence
    hosts: tuple[str, ...] = ()  # with the fault

    @property
    def cure(self) -> str:
        """The advice for its kind."""
        return RULES[self.kind][1]

    @property
    def text(self) -> str:
        """The message with the variables behind it and its evidence."""
        return f"{self.message}{f'; {self._set}' if self._set else ''}; by `{self.line}`"

    @property
    def cause(self) -> str:
        """The reason for a slow rate in a few words: the variables, else the way."""
        return self._set or self.message.partition(", although ")[0]

    @property
    def _set(self) -> str:
        are = "are" if len(self.settings) > 1 else "is"
        return f"{' and '.join(self.settings)} {are} set" if self.settings else ""


Found = Iterator[tuple[Level, str, str]]  # the level, the message, and NCCL's line


def _over_tcp(log: NcclLog, wiring: Wiring) -> Found:
    links = [link for link in log.links if link.network in _TCP and link.within is not True]
    if not links or max(log.nodes, wiring.nodes) < 2:
        return
    message = f"data between nodes went over TCP ({links[0].way})"
    if wiring.fast_ports:
        yield "fail", f"{message}, although there are {_listed(wiring.fast_ports)}", links[0].line
    elif "only_tcp" in log.facts:
        yield "fail", f"{message}: the plugin fell back", log.facts["only_tcp"].line
    elif wiring.fast_ports is None:  # else nothing faster is there
        yield "warn", message, links[0].line


def _around_p2p(log: NcclLog, wiring: Wiring) -> Found:
    for kind, way in (("SHM", "host memory"), ("NET", "the network")):
        links = [link for link in log.links if link.kind == kind and (kind == "SHM" or link.within)]
        if links:
            level: Level = "fail" if wiring.all_to_all else "warn"
            reason = ", although NVLink joins them" if wiring.all_to_all else ""
            if kind == "SHM" and wiring.nvlink is False:
                reason = "; without NVLink this is normal on many boards"
            yield level, f"GPUs of one node exchanged data over {way} ({links[0].way}){reason}", links[0].line


def _no_gdr(log: NcclLog, wiring: Wiring) -> Found:
    links = [
        link
        for link in log.links
        if link.kind == "NET" and not link.gdr and link.network not in _TCP and link.within is not True
    ]
    if links and wiring.near:
        level: Level = "fail" if wiring.slow else "warn"
        reason = f": {log.facts['no_gdr'].value}" if "no_gdr" in log.facts else ""
        message = "NICs did not read the memory of GPUs (no GDRDMA), although they share a PCIe switch"
        yield level, f"{message} ({links[0].way}){reason}", links[0].line


def _lost_nics(log: NcclLog, wiring: Wiring) -> Found:
    used = log.facts.get("nics")
    if wiring.nics is not None and used is not None and int(used.value) < wiring.nics:
        yield "fail", f"NCCL uses {used.value} of the {wiring.nics} NICs of a node", used.line


def _nvls_off(log: NcclLog, wiring: Wiring) -> Found:
    least = NVLS_FROM.get(wiring.nvlink_version or 0)
    domain = min(wiring.rack or wiring.gpus, max((comm.ranks for comm in log.comms), default=wiring.gpus))
    if not wiring.all_to_all or least is None or domain < least:
        return
    available, channels = log.facts.get("nvls"), log.facts.get("nvls_channels")
    switch, algorithm = log.variables.get("NCCL_NVLS_ENABLE"), log.algorithms.get("AllReduce")
    share = wiring.shares.get("all_reduce")
    level: Level = "fail" if share is not None and share < _NVLS_SHARE else "warn"
    without = "all_reduce goes without NVLink SHARP (NVLS): it is"
    if available is None:
        if switch is not None and switch.value == "0":
            yield level, f"{without} off", switch.line
    elif available.value == "no":
        if wiring.virtual is False and wiring.multicast is not False:  # a virtual machine may be without it
            yield "warn", "NVLink SHARP (NVLS) is not available, which Fabric Manager sets up", available.line
    elif channels is not None and channels.value == "0":
        yield level, f"{without} available, and no channel uses it", channels.line
    elif algorithm is not None and log.nodes == 1 and not algorithm.value.startswith("NVLS"):
        yield level, f"{without} available, and NCCL took {algorithm.value}", algorithm.line


def _mnnvl_off(log: NcclLog, wiring: Wiring) -> Found:
    if wiring.rack is None:
        return
    if "no_imex" in log.facts:
        yield "fail", "NVLink between the trays of the rack does not work", log.facts["no_imex"].line
        return
    for comm in log.comms:
        several = comm.nodes is not None and wiring.domains is not None and comm.nodes > wiring.domains
        if several or (wiring.domains == 1 and wiring.nodes > 1 and comm.mnnvl is False):
            state = f"MNNVL {int(comm.mnnvl)}, " if comm.mnnvl is not None else ""
            message = f"trays of a rack are not one NVLink domain ({state}{comm.nodes} domains for {wiring.domains})"
            yield "fail", message, comm.line
            return
    whole, clique = min(wiring.rack, max((comm.ranks for comm in log.comms), default=0)), log.facts.get("clique")
    if clique is not None and int(clique.value) < whole:
        yield "fail", f"a clique of {clique.value} ranks, where the rack has {whole}", clique.line
    links = [link for link in log.links if link.kind == "NET" and link.within]
    if links:
        yield "fail", f"data inside the rack went over the network ({links[0].way})", links[0].line


def _few_cores(_: NcclLog, wiring: Wiring) -> Found:
    if wiring.cores is not None and wiring.cores < wiring.gpus:
        cores = f"{wiring.cores} core{'s' if wiring.cores > 1 else ''}"
        yield "warn", f"all {wiring.gpus} ranks of a node run on {cores}", f"the ranks' affinity: {cores}"


def _far_cores(_: NcclLog, wiring: Wiring) -> Found:
    if wiring.far:
        message = f"of {wiring.far} of the {wiring.gpus} ranks of a node, {FAR_CORES}"
        yield "warn", message, "the ranks' affinity"


def _acs(log: NcclLog, wiring: Wiring) -> Found:
    """Yield ACS if data goes over PCIe switches and is slow; with a healthy rate, ACS is harmless."""
    by_pcie = any(link.gdr or (link.kind == "P2P" and wiring.nvlink is False) for link in log.links)
    if wiring.acs and by_pcie and wiring.slow:
        bridges = counted(len(wiring.acs), "bridge")
        message = f"PCI ACS of {bridges} sends data between GPUs and NICs through the processor"
        yield "warn", message, f"ACSCtl of {_listed(wiring.acs)}: request or completion redirect"


def _below(least: int) -> Callable[[str], bool]:
    return lambda value: value.isdecimal() and int(value) < least


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.upper() in values


def _lacks(*names: str) -> Callable[[str], bool]:
    """True for a list of names without any of these; one that begins with ^ excludes names."""
    return lambda value: (
        any(name in value.upper() for name in names) == value.startswith("^")
        if value.count("^") == value.startswith("^")
        else False
    )


def _never(_: str) -> bool:
    return False


class _Variable(NamedTuple):
    """A variable that may force a slow way."""

    slow: Callable[[str], bool]  # whether its value does, on any machine
    effect: str
    explains: tuple[TransportKind, ...] = ()  # findings that it explains, whatever its value is
    between: bool = False  # whether it matters between nodes alone


_VARIABLES: Mapping[str, _Variable] = {
    "NCCL_P2P_DISABLE": _Variable(_is("1"), "GPUs do not exchange data with each other", ("no_p2p",)),
    "NCCL_P2P_LEVEL": _Variable(_is("LOC", "0"), "GPUs do not exchange data with each other", ("no_p2p",)),
    "NCCL_SHM_DISABLE": _Variable(_is("1"), "ranks of a node do not share memory", ("no_p2p",)),
    "NCCL_IB_DISABLE": _Variable(_is("1"), "InfiniBand and RoCE are off", ("over_tcp", "lost_nics"), between=True),
    "NCCL_NET": _Variable(_is("SOCKET"), "the network is chosen by hand", ("over_tcp",), between=True),
    "NCCL_NET_PLUGIN": _Variable(_never, "the network's plugin is chosen by hand", ("over_tcp", "no_gdr")),
    "NCCL_IB_HCA": _Variable(_never, "NICs are chosen by hand", ("over_tcp", "lost_nics", "no_gdr")),
    "NCCL_NET_GDR_LEVEL": _Variable(_is("LOC", "0"), "NICs do not read the memory of GPUs", ("no_gdr",), between=True),
    "NCCL_DMABUF_ENABLE": _Variable(_never, "NICs may not read the memory of GPUs", ("no_gdr",)),
    "NCCL_ALGO": _Variable(_lacks("RING", "NVLS", "PAT"), "the algorithm is chosen by hand", ("nvls_off",)),
    "NCCL_PROTO": _Variable(_lacks("SIMPLE"), "the protocol is chosen by hand"),
    "NCCL_MAX_NCHANNELS": _Variable(_below(16), "few channels share the links", ("nvls_off",)),
    "NCCL_MAX_NRINGS": _Variable(_below(16), "few channels share the links", ("nvls_off",)),
    "NCCL_MAX_CTAS": _Variable(_below(16), "few channels share the links", ("nvls_off",)),
    "NCCL_NTHREADS": _Variable(_below(256), "few threads copy"),
    "NCCL_BUFFSIZE": _Variable(_below(1 << 20), "buffers are small"),
    "NCCL_NVLS_ENABLE": _Variable(_never, "it switches NVLink SHARP", ("nvls_off",)),
    "NCCL_CUMEM_ENABLE": _Variable(_never, "it switches memory that others can map", ("nvls_off", "mnnvl_off")),
    "NCCL_MNNVL_ENABLE": _Variable(_never, "it switches NVLink between trays", ("mnnvl_off",)),
}


def _slow_setting(log: NcclLog, wiring: Wiring) -> Found:
    between = max(log.nodes, wiring.nodes) > 1 or any(link.kind == "NET" for link in log.links)
    for name, variable in _VARIABLES.items():
        fact = log.variables.get(name)
        if fact and fact.value and variable.slow(fact.value.strip()) and (between or not variable.between):
            yield "warn", f"{name}={fact.value}: {variable.effect}", fact.line


# Each rule, and what to do about its findings.
RULES: Mapping[TransportKind, tuple[Callable[[NcclLog, Wiring], Found], str]] = {
    "over_tcp": (
        _over_tcp,
        "check NCCL_IB_DISABLE, NCCL_NET, NCCL_IB_HCA, the image's network plugin, and /dev/infiniband in a container",
    ),
    "no_p2p": (
        _around_p2p,
        "check NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, nvidia-smi topo -p2p r, Fabric Manager, and ACS or the IOMMU",
    ),
    "no_gdr": (
        _no_gdr,
        "load nvidia_peermem, or use a kernel and driver with DMA-BUF; check NCCL_NET_GDR_LEVEL; turn ACS off",
    ),
    "lost_nics": (
        _lost_nics,
        "check the state of each port (ibstat), NCCL_IB_HCA, and which devices the container sees",
    ),
    "nvls_off": (
        _nvls_off,
        "check NCCL_NVLS_ENABLE, NCCL_CUMEM_ENABLE and NCCL_ALGO; restart Fabric Manager, then reset the GPUs",
    ),
    "mnnvl_off": (
        _mnnvl_off,
        "check the IMEX service on every tray, NCCL_MNNVL_ENABLE, and ClusterUUID and CliqueId of nvidia-smi -q",
    ),
    "acs": (_acs, "turn ACS off in the BIOS, or with setpci on each of these bridges"),
    "slow_setting": (
        _slow_setting,
        "unset it: in the environment, the system's file, or /etc/nccl.conf and ~/.nccl.conf of the nodes",
    ),
    "few_cores": (
        _few_cores,
        "give ranks cores of their own: --cpu-bind and --cpus-per-task of srun, taskset, limits of the container",
    ),
    "far_cores": (_far_cores, FAR_CORES_CURE),
}


def judge_transport(logs: Mapping[str, NcclLog], wirings: Mapping[str, Wiring]) -> tuple[TransportFinding, ...]:
    """Apply all rules to the lines of each host. Hosts with the same fault share a finding.

    A finding names the variables that may explain it.
    """
    merged: dict[tuple[TransportKind, Level, str, tuple[str, ...]], TransportFinding] = {}
    for host, log in logs.items():
        wiring = wirings.get(host, Wiring())
        found = [(kind, *one) for kind, (find, _) in RULES.items() for one in find(log, wiring)]
        named = {setting for kind, *_ in found for setting in _explain(kind, log)}
        for kind, level, message, line in found:
            key = (kind, level, message, _explain(kind, log))
            # A variable that explains another finding has none of its own.
            if kind == "slow_setting" and message.partition(": ")[0] in named:
                continue
            one = merged.get(key, TransportFinding(*key, line))
            merged[key] = one._replace(hosts=(*one.hosts, host))
    return tuple(merged.values())


def _explain(kind: TransportKind, log: NcclLog) -> tuple[str, ...]:
    names = (name for name, variable in _VARIABLES.items() if kind in variable.explains and name in log.variables)
    settings = (f"{name}={log.variables[name].value}" for name in names)
    return tuple(setting for setting in settings if not setting.endswith("_DISABLE=0"))


def add_variables(log: NcclLog, variables: Mapping[str, str]) -> NcclLog:
    """The log with the variables that ranks have: NCCL prints one only when it reads it."""
    own = {name: Fact(value, f"{name}={value} in the environment of the ranks") for name, value in variables.items()}
    return replace(log, variables={**own, **log.variables})


def reasons(findings: Iterable[TransportFinding]) -> str:
    """The causes in words, each once, for the message of a number that missed its bound; empty without any."""
    return "; ".join(dict.fromkeys(finding.cause for finding in findings))


def why_unseen(log: NcclLog) -> str | None:
    """The reason why the transport is unknown; None if it is known."""
    if log.seen:
        return None
    what = f"{log.lines} lines of NCCL name no channel" if log.lines else "NCCL printed no line"
    unread = f", and {log.unread} cannot be read: `{log.unread_line}`" if log.unread else ""
    return f"transport not seen: {what}{unread}; does the image or a configuration lower NCCL_DEBUG?"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
