"""Bandwidths of a node's devices: their own memory, and the way between them and the host."""

from collections.abc import Mapping

from pytest_llmbench.checks.answers import silent
from pytest_llmbench.checks.base import Check, CheckSettings, Fleet, NodeCheck, options_of
from pytest_llmbench.checks.compute import rates
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict

#: statistic host_device_bandwidth.host_to_device: copy from pinned memory to one GPU
#: statistic host_device_bandwidth.device_to_host: copy from one GPU to pinned memory
#: statistic host_device_bandwidth.host_to_device_all: copy to the GPUs, all GPUs of a node at once
#: statistic host_device_bandwidth.device_to_host_all: copy from the GPUs, all GPUs of a node at once
_DIRECTIONS = ("host_to_device", "device_to_host", "host_to_device_all", "device_to_host_all")


class MemoryBandwidth(NodeCheck):
    """The triad of STREAM in each device's own memory, all devices of a node at once."""

    name = "memory_bandwidth"
    family = "compute"
    summary = "bandwidth of the memory of every GPU (or of the host), against references and the other nodes"
    options: type[Strict] = rates.RateOptions
    #: statistic memory_bandwidth.memory_triad: STREAM's triad in a device's own memory
    statistics: Mapping[str, str] = {"memory_triad": "GB/s"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Measure, and judge."""
        action = "check the memory's clock and its ECC and remapped rows"
        return _report(self, fleet, settings, part="memory", action=action)


class HostDeviceBandwidth(NodeCheck):
    """Copies between pinned memory of the host and each GPU: one GPU after the other, and all of a node at once."""

    name = "host_device_bandwidth"
    family = "compute"
    summary = "bandwidth between the host and every GPU, alone and with all GPUs of the node at once"
    options: type[Strict] = rates.RateOptions
    statistics: Mapping[str, str] = dict.fromkeys(_DIRECTIONS, "GB/s")

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Measure, and judge."""
        if fleet.site.device == "cpu":
            return Report(skip="the nodes have no GPUs: there is nothing to copy to")
        action = "check the width and speed of the PCIe link, and that it is bound to its own socket"
        return _report(self, fleet, settings, part="host_device", action=action)


def _report(check: Check, fleet: Fleet, settings: CheckSettings, *, part: str, action: str) -> Report:
    options = options_of(check, settings, rates.RateOptions)
    answers = rates.ask(fleet, check, settings)
    found = [
        rates.rated(fleet.site, answer, name, value / 1e9, "GB/s")
        for answer, data in rates.answered(answers)
        for name, value in _bandwidths(data, part).items()
    ]
    return Report(
        findings=tuple(rates.judge(found, fleet.site, settings, tolerance=options.tolerance, action=action)),
        readings=tuple(each.reading for each in found),
        unjudged=silent(answers),
        unbounded=rates.no_bound(found, fleet.site, settings),
        notes=tuple(rates.unjudged_rates(found, fleet.site, settings, options.tolerance)),
        evidence={
            f"{answer.host} {rates.subject(fleet.site, answer)}": getattr(data, part)
            for answer, data in rates.answered(answers)
        },
    )


def _bandwidths(data: DeviceRates, part: str) -> dict[str, float]:
    """Bandwidths of one device, B/s."""
    if part == "memory":
        return {} if data.memory is None else {"memory_triad": data.memory}
    return {} if data.host_device is None else data.host_device.model_dump()
