"""Errors that NVIDIA's driver wrote into the kernel's log since the node booted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_llmbench.checks.base import Site, finding
from pytest_llmbench.checks.gpu.base import GpuCheck, Nodes, subject
from pytest_llmbench.checks.gpu.kernel_log import DriverLog, KernelEvent, read_driver_log
from pytest_llmbench.checks.gpu.xids import meaning
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_ACTIONS = {
    Severity.ISOLATE: "take the node out and have the GPU looked at",
    Severity.REBOOT: "reboot the node (a cold start, where it can be); if it comes again, replace the GPU",
    Severity.RESET: "drain the node, reset the GPU, and boot the node so that its log begins again; replace it if the "
    "error comes again",
    Severity.CONFIGURE: "install a driver that fits",
    Severity.MONITOR: "look at the job that ran then",
}


class XidOptions(Strict):
    """Codes that this site tolerates.

    Attributes:
        tolerated: xids that are only hints here.
        tolerated_sxids: SXids that are only hints here.
        whole_log: make a node an ERROR if its log no longer reaches back to the boot.
    """

    tolerated: tuple[int, ...] = ()
    tolerated_sxids: tuple[int, ...] = ()
    whole_log: bool = True


class Xid(GpuCheck):
    """Xids and SXids, each with what NVIDIA advises."""

    name = "gpu_xid"
    summary = "errors of GPUs and NVSwitches in the kernel log since the node booted"
    options: type[Strict] = XidOptions

    def report(self, nodes: Nodes, site: Site, options: XidOptions) -> Report:  # noqa: ARG002
        """Judge each log; an unreadable one may contain errors."""
        findings: list[Finding] = []
        unjudged = dict(nodes.silent)
        for host, answer in nodes.told.items():
            log = read_driver_log("\n".join(answer["kernel_log"]["lines"]))
            names = {gpu.bus: subject(gpu) for gpu in nodes.smi[host].gpus} if host in nodes.smi else {}
            findings += _findings(host, log, names, options)
            why = _why_unjudged(answer["kernel_log"], log, options)
            if why:
                unjudged[host] = why
        evidence = {host: _evidence(answer["kernel_log"]) for host, answer in nodes.told.items()}
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"kernel_log": evidence})


def _findings(host: str, log: DriverLog, names: Mapping[str, str], options: XidOptions) -> Iterator[Finding]:
    """One finding for each device, code and severity, however often it was logged."""
    seen: dict[tuple[str, bool, int, Severity], list[KernelEvent]] = {}
    for event in log.events:  #: finding xid: an error of a GPU in the kernel's log
        tolerated = options.tolerated_sxids if event.switch else options.tolerated
        severity = Severity.MONITOR if event.code in tolerated else meaning(event).severity
        seen.setdefault((event.bus, event.switch, event.code, severity), []).append(event)
    #: finding sxid: an error of an NVSwitch in the kernel's log
    for (bus, switch, code, severity), events in seen.items():
        times = f"{len(events)} times" if len(events) > 1 else "once"
        device, name = (f"NVSwitch {bus}", "SXid") if switch else (names.get(bus, f"GPU at {bus}"), "Xid")
        said = events[-1].text[:200] or "no words of the driver"
        message = f"{name} {code}, {times}: {meaning(events[-1]).words} ({said})"
        yield finding(host, device, "sxid" if switch else "xid", severity, message, _ACTIONS[severity])


def _why_unjudged(told: Mapping[str, Any], log: DriverLog, options: XidOptions) -> str | None:
    refused = "; ".join(told["refused"]) or "no source"
    if told["source"] is None:
        return (
            f"the kernel log, which lists Xids, cannot be read ({refused}); let the user read it "
            "(kernel.dmesg_restrict=0, or the group systemd-journal)"
        )
    if log.unreadable:
        return f"{len(log.unreadable)} lines about Xids cannot be read, the first: {log.unreadable[0]}"
    if options.whole_log and not told["whole"]:
        return (
            f"the log of {told['source']} does not reach back to the boot, and an earlier Xid may be lost (others: "
            f"{refused}); keep a journal, raise log_buf_len, or set whole_log: false"
        )
    return None


def _evidence(told: Mapping[str, Any]) -> dict[str, Any]:
    """The log with those lines alone that tell of errors: the driver says much when it is loaded."""
    return {**told, "lines": [line for line in told["lines"] if "Xid" in line or "fallen off" in line][-200:]}
