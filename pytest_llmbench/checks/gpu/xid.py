"""Xids: errors that the NVIDIA driver wrote into the kernel's log since the node booted, of GPUs and of NVSwitches.

Actions follow NVIDIA's catalog of Xids (https://docs.nvidia.com/deploy/xid-errors, for Ampere and newer, 2025), where
a reset of the GPU is RESET here, a restart of the machine REBOOT, and a restart of the application, or nothing, is
MONITOR: the node is fit. The words are ours.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_llmbench.checks.base import Site
from pytest_llmbench.checks.gpu.base import GpuCheck, GpuNodes, finding, subject
from pytest_llmbench.checks.gpu.kernel_log import DriverLog, KernelEvent, read_driver_log
from pytest_llmbench.checks.gpu.nodes.facts import KernelLog
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

# Each of these is one of many errors, and the driver writes "Fatal" or "Nonfatal" in its line.
_OF_LINKS = range(144, 151)
_NVLINK = "a fault of an NVLink, of this GPU or of the device at its other end"
_ENGINE = "a fault in one of the engines for copies or video, most often by an application"


class Meaning(NamedTuple):
    """The required action for a code, and what the code means."""

    severity: Severity
    words: str


_TABLE: dict[Severity, dict[int, str]] = {
    Severity.ISOLATE: {
        54: "the board's own power cable is not connected",
        142: "a fault in a video encoder, which NVIDIA's support has to look at",
        165: "the circuits that smooth the power draw are worn out",
    },
    Severity.REBOOT: {
        79: "the GPU no longer answers on PCIe (it fell off the bus)",
        151: "the keys of confidential computing could not be changed",
        167: "a fatal timeout on PCIe",
    },
    Severity.RESET: {
        46: "the GPU stopped working",
        48: "an ECC error in memory that could not be corrected",
        61: "a microcontroller of the GPU stopped at a breakpoint",
        62: "a microcontroller of the GPU halted",
        64: "a bad row or page of memory could not be recorded for replacement",
        74: _NVLINK,
        95: "a memory error that was not contained: other processes may have wrong data, too",
        109: "the GPU did not switch from one context to another in time",
        110: "a security fault, which without broken hardware is rare",
        119: "the GPU's system processor (GSP) did not answer the driver in time",
        120: "the GPU's system processor (GSP) failed",
        136: "an NVLink could not be trained",
        140: "memory errors that kept the driver from recording the bad rows",
        143: "the GPU could not be initialized",
        **dict.fromkeys(_OF_LINKS, _NVLINK),
        155: "an NVLink was taken down by software",
        156: "a part of the GPU is retired, which takes effect with a reset",
        158: "a fatal timeout within the GPU",
        159: "a fault on the link between GPU and CPU",
        168: "a part of the memory could not be used",
        169: "the security processor of the GPU halted",
        171: "an ECC error in DRAM that could not be corrected",
        172: "an ECC error in SRAM that could not be corrected",
    },
    Severity.CONFIGURE: {78: "a virtual GPU could not start: driver and hypervisor do not match"},
    Severity.MONITOR: {
        8: "work on the GPU did not end in time",
        11: "commands of an application were not valid",
        13: "an exception of the compute engine, most often by an application",
        31: "access to memory that is not mapped, most often by an application",
        32: "commands of an application were not valid",
        **dict.fromkeys((38, 39, 40, 41, 42, 60, 68, *range(70, 73), *range(75, 78), *range(82, 87)), _ENGINE),
        **dict.fromkeys((88, 89, *range(96, 106), *range(126, 136), 139), _ENGINE),
        43: "the GPU ended the work of an application, whose fault it was",
        44: "a fault of the compute engine while it switched contexts",
        45: "the work of a process was taken off the GPU, as when it is killed",
        63: "a bad row or page of memory was recorded for replacement",
        66: "the driver made an access that is not allowed",
        67: "the driver made an access that is not allowed",
        69: "the compute engine was given a command it does not have, most often by an application",
        80: "corrupted commands reached the GPU",
        92: "many ECC errors, all corrected",
        93: "its own flash memory was not written, to spare it",
        94: "a memory error that was contained: only the process that met it had to end",
        106: "a test message",
        107: "a test message",
        108: "an access over NVLink that the other GPU could not resolve",
        121: "corrected errors on the link between GPU and CPU",
        137: "an access over NVLink that was not allowed, most often by an application",
        141: "a fault on a fast path of CUDA",
        152: "a fault of an accelerator that training does not use",
        153: "a fault of an accelerator that training does not use",
        157: "a part of the GPU should be retired, and there is no spare",
        160: "a memory channel is retired",
        161: "a memory channel could not be retired",
        162: "smoothing of the power draw is on again",
        163: "smoothing of the power draw is off",
        164: "the circuits that smooth the power draw are nearly worn out",
        166: "traffic of confidential computing before its link was ready",
        170: "an interrupt of confidential computing",
    },
}
XIDS: Mapping[int, Meaning] = {
    code: Meaning(severity, words) for severity, codes in _TABLE.items() for code, words in codes.items()
}
# Code 154 names the action that the driver requests after another Xid, in words.
_RECOVERY = 154
_REQUESTS = {"reboot": Severity.REBOOT, "reset": Severity.RESET, "drain": Severity.RESET, "(none)": Severity.MONITOR}
# A code outside the table may be harmless. But a reset costs little, and a broken GPU costs the job. A site lists
# harmless codes under `tolerated`.
_UNKNOWN = Meaning(Severity.RESET, "a code that is missing in this table")
# Lines of a log in the record.
_SHOWN = 200
_ACTIONS = {
    Severity.ISOLATE: "take the node out and have the GPU looked at",
    Severity.REBOOT: "reboot the node (a cold start, where it can be); if it comes again, replace the GPU",
    Severity.RESET: "drain the node, reset the GPU, and reboot the node so that its log begins again; replace the GPU "
    "if the error comes again",
    Severity.CONFIGURE: "install a driver that fits",
    Severity.MONITOR: "see which job ran at that time",
}


def meaning(event: KernelEvent) -> Meaning:
    """Required action after an event, and the meaning of its code."""
    if event.fatal:
        return Meaning(Severity.RESET, "a fatal error of an NVSwitch: all GPUs and switches have to be reset together")
    if event.switch:
        return Meaning(Severity.MONITOR, "an error of an NVSwitch that it calls not fatal")
    if event.code in _OF_LINKS and event.nonfatal:
        return Meaning(Severity.MONITOR, "an error of an NVLink that the driver calls nonfatal: the link goes on")
    if event.code == _RECOVERY:
        # "... changed from 0x0 (None) to 0x2 (Node Reboot Required)": the last one counts.
        request = event.text.lower().rpartition(" to ")[2]
        severity = next((_REQUESTS[word] for word in _REQUESTS if word in request), Severity.RESET)
        return Meaning(severity, "the driver names the required action")
    return XIDS.get(event.code, _UNKNOWN)


class XidOptions(Strict):
    """Codes that this site tolerates."""

    tolerated: tuple[int, ...] = ()
    """Xid codes that are only hints on this system."""
    tolerated_sxids: tuple[int, ...] = ()
    """SXid codes that are only hints on this system."""
    whole_log: bool = True
    """A node is an ERROR if its log no longer reaches back to the boot."""


class Xid(GpuCheck):
    """Xids and SXids, each with the action that NVIDIA advises."""

    name = "gpu_xid"
    summary = "errors of GPUs and NVSwitches in the kernel log since the node booted"
    options: type[Strict] = XidOptions

    def report(self, nodes: GpuNodes, site: Site, options: XidOptions) -> Report:
        findings: list[Finding] = []
        unjudged = dict(nodes.silent)
        evidence = {}
        for host, node in nodes.facts.items():
            log = read_driver_log(node.kernel_log.lines, node.kernel_log.times)
            names = {gpu.bus: subject(gpu) for gpu in nodes.smi[host].gpus} if host in nodes.smi else {}
            findings += _find_errors(host, log, names, options)
            if reason := _why_unjudged(node.kernel_log, log, options):
                unjudged[host] = reason
            evidence[host] = node.kernel_log.model_copy(
                update={"lines": node.kernel_log.lines[-_SHOWN:], "times": node.kernel_log.times[-_SHOWN:]}
            )
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"kernel_log": evidence})


def _find_errors(host: str, log: DriverLog, names: Mapping[str, str], options: XidOptions) -> Iterator[Finding]:
    """One finding for each device, code and severity, however often it was logged."""
    seen: dict[tuple[str, bool, int, Severity], list[KernelEvent]] = {}
    for event in log.events:  #: finding xid: an error of a GPU in the kernel's log
        tolerated = options.tolerated_sxids if event.switch else options.tolerated
        severity = Severity.MONITOR if event.code in tolerated else meaning(event).severity
        seen.setdefault((event.bus, event.switch, event.code, severity), []).append(event)
    #: finding sxid: an error of an NVSwitch in the kernel's log
    for (bus, switch, code, severity), events in seen.items():
        count = sum(event.times for event in events)
        times = f"{count} times" if count > 1 else "once"
        gpu = f"GPU at {bus}" if bus else "a GPU"
        device, name = (f"NVSwitch {bus}", "SXid") if switch else (names.get(bus, gpu), "Xid")
        words = events[-1].text[:200] or "no words of the driver"
        message = f"{name} {code}, {times}: {meaning(events[-1]).words} ({words})"
        yield finding(host, device, "sxid" if switch else "xid", severity, message, _ACTIONS[severity])


def _why_unjudged(kernel_log: KernelLog, log: DriverLog, options: XidOptions) -> str | None:
    refused = "; ".join(kernel_log.refused) or "no source"
    if kernel_log.source is None:
        return (
            f"the kernel log, which lists Xids, cannot be read ({refused}); let the user read it "
            "(kernel.dmesg_restrict=0, or the group systemd-journal)"
        )
    if log.unreadable:
        return f"{len(log.unreadable)} lines about Xids cannot be read, the first: {log.unreadable[0]}"
    if options.whole_log and not kernel_log.whole:
        return (
            f"the log of {kernel_log.source} does not reach back to the boot, and an earlier Xid may be lost (others: "
            f"{refused}); keep a journal, raise log_buf_len, or set whole_log: false"
        )
    return None
