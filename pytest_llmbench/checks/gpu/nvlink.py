"""Check of NVLinks: number and speed on every GPU."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat

from pytest_llmbench.checks.answers import skip_all
from pytest_llmbench.checks.base import Site
from pytest_llmbench.checks.gpu.base import Fault, GpuCheck, GpuNodes, find_unlike, finding, require_output
from pytest_llmbench.checks.gpu.nodes.facts import ToolOutput
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_GPU = re.compile(r"GPU (\d{1,4}): (.*)", re.ASCII)
_LINK = re.compile(r"Link (\d{1,4}): (?:(\d{1,6}(?:\.\d{1,9})?) GB/s|<inactive>)", re.ASCII)
_NONE_ACTIVE = re.compile(r"all links are in-?active", re.IGNORECASE)
_NO_NVLINK = re.compile(r"does not (?:have|support)|not supported", re.IGNORECASE)
# GPUs on boards that link them. Cards, which a bridge may join, and superchips that may stand alone miss no link.
_LINKED = re.compile(r"SXM|\bH100 \d+GB HBM3|\b(?:H20|H200|H800|G?B[23]00)\b", re.ASCII)
_CARD = re.compile(
    r"\b(?:PCIe|NVL|A[0-9]{1,2}|L[0-9]{1,2}S?|T[0-9]{1,2}|RTX|GeForce|Quadro|TITAN|GH200)\b", re.ASCII | re.IGNORECASE
)
_RESET = "reset all GPUs of the node, or reboot it; if the link stays down, replace the GPU, its board or the switch"
# State, status, health and bandwidth of a GPU that is in its fabric.
_JOINED = ("Completed", "Success", "Healthy", "Full")
_FABRIC = "systemctl status nvidia-fabricmanager on the node; start it, then reset the GPUs"


@dataclass(frozen=True, kw_only=True, slots=True)
class NvlinkState:
    """The NVLinks of one GPU."""

    speeds: tuple[float | None, ...]  # by link, GB/s in each direction; None for one that is inactive
    all_inactive: bool  # whether the driver lists no link because all of them are inactive
    name: str = ""  # of the GPU's model

    @property
    def hides_links(self) -> bool:
        """Whether the driver names no link of a GPU whose board has some."""
        linked = _LINKED.search(self.name) and not _CARD.search(self.name)
        return bool(linked) and not (self.speeds or self.all_inactive)

    @property
    def has_no_bridge(self) -> bool:
        """Whether all NVLinks of the card are idle."""
        return not self.active and bool(_CARD.search(self.name))

    @property
    def active(self) -> tuple[float, ...]:
        return tuple(speed for speed in self.speeds if speed is not None)


def read_links(text: str) -> dict[int, NvlinkState]:
    """Read the output of `nvidia-smi nvlink -s`: links by GPU.

    Raises RunError `unreadable` if it lists no GPU, one twice, or anything else than GPUs and links.
    """
    speeds: dict[int, list[float | None]] = {}
    names: dict[int, str] = {}
    inactive: set[int] = set()
    gpu: int | None = None
    for line in (line.strip() for line in text.splitlines()):
        if (head := _GPU.fullmatch(line)) and int(head[1]) not in speeds:
            gpu = int(head[1])
            names[gpu] = head[2].partition(" (UUID")[0]
            speeds[gpu] = []
            inactive |= {gpu} if _NONE_ACTIVE.search(line) else set()  # some builds print it behind the name
        elif gpu is not None and (link := _LINK.fullmatch(line)) and int(link[1]) == len(speeds[gpu]):
            speeds[gpu].append(None if link[2] is None else float(link[2]))
        elif gpu is not None and _NONE_ACTIVE.search(line):
            inactive.add(gpu)
        elif line and not (gpu is not None and _NO_NVLINK.search(line)):
            raise RunError("unreadable", f"nvidia-smi nvlink -s printed {line[:200]!r}")
    if not speeds:
        raise RunError("unreadable", "nvidia-smi nvlink -s printed no GPU")
    return {
        gpu: NvlinkState(speeds=tuple(links), all_inactive=gpu in inactive, name=names[gpu])
        for gpu, links in speeds.items()
    }


class NvlinkOptions(Strict):
    """Requirements for the links."""

    links: NonNegativeInt | None = None
    """Number of active links of each GPU, 0 where there are none.

    Absent, no link may be inactive, and all GPUs must have as many as most.
    """
    speed_gb_s: PositiveFloat | None = None
    """Speed of each link, in GB/s per direction; absent, the speed of most links."""


class GpuNvlink(GpuCheck):
    """State and speed of every link, and whether GPUs joined the fabric."""

    name = "gpu_nvlink"
    summary = "every NVLink is active and at full speed, and GPUs joined their fabric"
    options: type[Strict] = NvlinkOptions

    def report(self, nodes: GpuNodes, site: Site, options: NvlinkOptions) -> Report:
        links: dict[tuple[str, int], NvlinkState] = {}
        unjudged = dict(nodes.unjudged)
        for host, smi in nodes.smi.items():
            output = nodes.facts[host].nvlink
            try:
                require_output(output)
                # Of GPUs that have no NVLink, some drivers print nothing at all.
                silent = {
                    gpu.index: NvlinkState(speeds=(), all_inactive=False, name=gpu.name or "") for gpu in smi.gpus
                }
                own = read_links(output.text) if output.text.strip() else silent
            except RunError as error:
                unjudged[host] = str(error)
                continue
            if set(own) == {gpu.index for gpu in smi.gpus}:
                links |= {(host, gpu): state for gpu, state in own.items()}
            else:
                unjudged[host] = f"{output.command} lists GPUs {sorted(own)}; there are {len(smi.gpus)}"
        shown: dict[str, list[dict[str, Any]]] = {}
        for (host, gpu), state in links.items():
            shown.setdefault(host, []).append({"gpu": gpu, "speeds_gb_s": list(state.speeds)})
        none = not any(
            (state.speeds or state.all_inactive or state.hides_links) and not state.has_no_bridge
            for state in links.values()
        )
        if none and options.links is None:
            return skip_all("these GPUs have no NVLink, or no bridge joins them", shown, unjudged)
        findings = [
            finding(host, f"GPU {gpu}", *fault)
            for (host, gpu), state in links.items()
            for fault in _check_links(state, options)
        ]
        findings += _compare(links, options)
        findings += _find_outside_fabric(nodes)
        gpus = Counter(gpu.domain for _, gpu in nodes.gpus() if gpu.domain)  # as many as NCCL's cliqueSize
        sizes = Counter(domain for _, domain in {(host, gpu.domain) for host, gpu in nodes.gpus()})
        notes = tuple(
            f"NVLink domain {domain}: {counted(sizes[domain], 'node')}, {count} GPUs"
            for domain, count in sorted(gpus.items())
        )
        return Report(findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"nvlink": shown})


def _find_outside_fabric(nodes: GpuNodes) -> Iterator[Finding]:
    """Yield GPUs outside of their fabric, or in another one than the rest, and a service that is down."""
    for host, gpu in nodes.gpus():
        states = (gpu.fabric, gpu.fabric_status, gpu.fabric_health, gpu.fabric_bandwidth)  # None without NVSwitches
        bad = [state for state, good in zip(states, _JOINED, strict=True) if state not in {None, good}]
        if bad:
            message = f"it did not join the NVLink fabric: {', '.join(bad)}"
            #: finding fabric: a GPU did not join its NVLink fabric
            yield finding(host, f"GPU {gpu.index}", "fabric", Severity.RESET, message, _FABRIC)
    joined = {host for host, gpu in nodes.gpus() if gpu.domain is not None}
    for host in nodes.smi if joined else ():
        own = {(host, f"GPU {gpu.index}"): gpu.domain or "none" for gpu in nodes.smi[host].gpus}
        yield from find_unlike("NVLink domain", own, action=_FABRIC)
        if host not in joined:
            message = f"it is in no NVLink domain, {len(joined)} of {len(nodes.smi)} nodes are"
            yield finding(host, "", "fabric", Severity.RESET, message, _FABRIC)
        elif (output := nodes.facts[host].imex) is not None:
            yield from _find_imex(host, output)


def _find_imex(host: str, output: ToolOutput) -> Iterator[Finding]:
    """Yield a finding if the IMEX domain of a node is down, and a hint if parts of it are or its state is unknown."""
    status, nodes = "", {}
    with suppress(ValueError, AttributeError):
        answer = read_json(output.text)
        status, nodes = str(answer.get("status", "")), answer.get("nodes", {})
    if status == "UP":
        return
    down = status == "DOWN"
    absent = [str(node.get("host")) for node in nodes.values() if node.get("status") != "READY"]
    message = f"the IMEX domain is {status or 'unknown'}" + (f"; not ready: {listed(absent, 8)}" if absent else "")
    message += f": {output.error}" if output.error else ""
    action = "systemctl status nvidia-imex, and compare nodes_config.cfg and the driver on all nodes of the domain"
    #: finding imex: the IMEX service is down on some or all nodes
    yield finding(host, "nvidia-imex", "imex", Severity.RESET if down else Severity.MONITOR, message, action)


def _check_links(state: NvlinkState, options: NvlinkOptions) -> Iterator[Fault]:
    dead = [number for number, speed in enumerate(state.speeds) if speed is None]
    active = len(state.active)
    message = ""
    if options.links is not None and active != options.links:
        message = f"{active} NVLinks are active, {options.links} expected"
    elif options.links is None and state.hides_links:
        message = (
            "the driver names no NVLink, and its board has some; where GPUs are not linked on purpose, set links: 0"
        )
    elif options.links is None and state.has_no_bridge:
        message = ""  # `_compare` finds a card whose neighbours have one
    elif options.links is None and active == 0 and (dead or state.all_inactive):
        message = "no NVLink is active; where GPUs are not linked on purpose, set links: 0"
    elif options.links is None and dead:
        message = f"NVLinks {', '.join(map(str, dead))} of {len(state.speeds)} are inactive"
    if message:  #: finding nvlink_inactive: NVLinks are not active
        yield "nvlink_inactive", Severity.RESET, message, _RESET if active else f"{_FABRIC}; {_RESET}"
    slow = [speed for speed in state.active if options.speed_gb_s is not None and speed < options.speed_gb_s]
    if slow:  #: finding nvlink_slow: NVLinks are active below their speed
        message = f"{len(slow)} NVLinks run at {min(slow):g} GB/s or more, {options.speed_gb_s:g} GB/s expected"
        yield "nvlink_slow", Severity.RESET, message, _RESET


def _compare(links: Mapping[tuple[str, int], NvlinkState], options: NvlinkOptions) -> Iterator[Finding]:
    states = {(host, f"GPU {gpu}"): state for (host, gpu), state in links.items()}
    if options.links is None:
        counts = {key: str(len(state.speeds if state.active else ())) for key, state in states.items()}
        yield from find_unlike("number of NVLinks", counts, action=_RESET)
    if options.speed_gb_s is None:
        slowest = {key: f"{min(state.active):g} GB/s" for key, state in states.items() if state.active}
        yield from find_unlike("slowest NVLink", slowest, action=_RESET)
