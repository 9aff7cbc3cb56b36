"""NVLinks: as many as there must be, on every GPU, at full speed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat

from pytest_llmbench.checks.base import Site
from pytest_llmbench.checks.gpu.base import GpuCheck, Nodes, unlike
from pytest_llmbench.checks.gpu.kinds import GpuKind, finding
from pytest_llmbench.checks.gpu.nodes.facts import ToolOutput
from pytest_llmbench.checks.gpu.nvidia_smi import Smi
from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_GPU = re.compile(r"GPU (\d{1,4}): .*", re.ASCII)
_LINK = re.compile(r"Link (\d{1,4}): (?:(\d{1,6}(?:\.\d{1,9})?) GB/s|<inactive>)", re.ASCII)
_NONE_ACTIVE = re.compile(r"all links are in-?active", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class NvlinkState:
    """The NVLinks of one GPU.

    Attributes:
        speeds: by link, GB/s in each direction; None for one that is inactive.
        all_inactive: whether the driver lists none because not one is active.
    """

    speeds: tuple[float | None, ...]
    all_inactive: bool

    @property
    def active(self) -> tuple[float, ...]:
        """Speeds of the active links."""
        return tuple(speed for speed in self.speeds if speed is not None)


def read_links(text: str) -> dict[int, NvlinkState]:
    """Read what `nvidia-smi nvlink -s` printed: links by GPU.

    Raises:
        RunError: `unreadable`, when there is no GPU in it, one twice, or a line that is neither of a GPU nor of a link.
    """
    speeds: dict[int, list[float | None]] = {}
    silent: set[int] = set()
    gpu: int | None = None
    for line in (line.strip() for line in text.splitlines()):
        if (head := _GPU.fullmatch(line)) and int(head[1]) not in speeds:
            gpu = int(head[1])
            speeds[gpu] = []
        elif gpu is not None and (link := _LINK.fullmatch(line)) and int(link[1]) == len(speeds[gpu]):
            speeds[gpu].append(None if link[2] is None else float(link[2]))
        elif gpu is not None and _NONE_ACTIVE.search(line):
            silent.add(gpu)
        elif line:
            raise RunError("unreadable", f"nvidia-smi nvlink -s printed {line[:200]!r}")
    if not speeds:
        raise RunError("unreadable", "nvidia-smi nvlink -s printed no GPU")
    return {gpu: NvlinkState(speeds=tuple(each), all_inactive=gpu in silent) for gpu, each in speeds.items()}


_RESET = "reset all GPUs of the node, or reboot it; if the link stays down, replace the GPU, its board or the switch"
_FABRIC = "systemctl status nvidia-fabricmanager on the node; start it, then reset the GPUs"


class NvlinkOptions(Strict):
    """Requirements for the links."""

    links: NonNegativeInt | None = None
    """Active links of each GPU, 0 where there are none; absent, none may be inactive, and all GPUs have as many as
    most.
    """
    speed_gb_s: PositiveFloat | None = None
    """Speed of each link, GB/s in each direction; absent, that of most."""


class GpuNvlink(GpuCheck):
    """State and speed of every link, and whether GPUs joined the fabric."""

    name = "gpu_nvlink"
    summary = "every NVLink is active and at full speed, and GPUs joined their fabric"
    options: type[Strict] = NvlinkOptions

    def report(self, nodes: Nodes, site: Site, options: NvlinkOptions) -> Report:  # noqa: ARG002
        """Judge and compare the links."""
        links, unjudged = _read(nodes)
        evidence = {"nvlink": {host: _shown(each) for host, each in links.items()}}
        if _without(links) and options.links is None and not unjudged:
            return Report(skip="these GPUs have no NVLink", evidence=evidence)
        findings = [
            *(each for host, gpus in links.items() for each in _of_node(host, gpus, options)),
            *_alike(links, options),
            *_fabric(nodes),
        ]
        return Report(findings=tuple(findings), unjudged=unjudged, evidence=evidence)


def _read(nodes: Nodes) -> tuple[dict[str, dict[int, NvlinkState]], dict[str, str]]:
    """Links by host and GPU, and why a host has none."""
    found: dict[str, dict[int, NvlinkState]] = {}
    unjudged = dict(nodes.unjudged)
    for host, smi in nodes.smi.items():
        try:
            found[host] = _of_answer(nodes.told[host].nvlink, smi)
        except RunError as error:
            unjudged[host] = str(error)
    return found, unjudged


def _of_answer(told: ToolOutput, smi: Smi) -> dict[int, NvlinkState]:
    if told.error is not None:
        raise RunError("failed", f"{told.command}: {told.error}")
    found = read_links(told.text)
    if set(found) != {gpu.index for gpu in smi.gpus}:
        raise RunError("unreadable", f"{told.command} lists GPUs {sorted(found)}; there are {len(smi.gpus)}")
    return found


def _without(links: Mapping[str, Mapping[int, NvlinkState]]) -> bool:
    """Whether no GPU anywhere has a link, not even an inactive one."""
    return not any(each.speeds or each.all_inactive for gpus in links.values() for each in gpus.values())


def _of_node(host: str, gpus: Mapping[int, NvlinkState], options: NvlinkOptions) -> Iterator[Finding]:
    for gpu, each in gpus.items():
        dead = [number for number, speed in enumerate(each.speeds) if speed is None]
        active = len(each.active)
        if options.links is not None and active != options.links:
            message = f"{active} NVLinks are active, {options.links} expected"
        elif options.links is None and active == 0 and (dead or each.all_inactive):
            message = "no NVLink is active; where GPUs are not linked on purpose, set links: 0"
        elif options.links is None and dead:
            message = f"NVLinks {', '.join(map(str, dead))} of {len(each.speeds)} are inactive"
        else:
            continue
        action = _RESET if active else f"{_FABRIC}; {_RESET}"
        yield _fault(host, gpu, "nvlink_inactive", message, action)  #: finding nvlink_inactive: NVLinks are not active
    for gpu, each in gpus.items():
        slow = [speed for speed in each.active if options.speed_gb_s is not None and speed < options.speed_gb_s]
        if slow:  #: finding nvlink_slow: NVLinks are active below their speed
            message = f"{len(slow)} NVLinks run at {min(slow):g} GB/s or more, {options.speed_gb_s:g} GB/s expected"
            yield _fault(host, gpu, "nvlink_slow", message, _RESET)


def _fault(host: str, gpu: int, kind: GpuKind, message: str, action: str) -> Finding:
    return finding(host, f"GPU {gpu}", kind, Severity.RESET, message, action)


def _alike(links: Mapping[str, Mapping[int, NvlinkState]], options: NvlinkOptions) -> Iterator[Finding]:
    every = {(host, f"GPU {gpu}"): each for host, gpus in links.items() for gpu, each in gpus.items()}
    if options.links is None:
        yield from unlike(
            "number of NVLinks", {key: str(len(each.speeds)) for key, each in every.items()}, action=_RESET
        )
    if options.speed_gb_s is None:
        slowest = {key: f"{min(each.active):g} GB/s" for key, each in every.items() if each.active}
        yield from unlike("slowest NVLink", slowest, action=_RESET)


def _fabric(nodes: Nodes) -> Iterator[Finding]:
    """GPUs on NVSwitches must have joined the fabric; others say nothing of one."""
    for host, gpu in nodes.gpus():
        if gpu.fabric not in {None, "Completed"}:  #: finding fabric: a GPU did not join its NVLink fabric
            message = f"it did not join the NVLink fabric: {gpu.fabric}"
            yield _fault(host, gpu.index, "fabric", message, _FABRIC)


def _shown(gpus: Mapping[int, NvlinkState]) -> list[dict[str, Any]]:
    return [{"gpu": gpu, "speeds_gb_s": list(each.speeds)} for gpu, each in gpus.items()]
