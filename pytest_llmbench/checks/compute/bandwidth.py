"""Bandwidths of a node's devices: their own memory, and the way between them and the host."""

from collections.abc import Mapping

from pytest_llmbench.checks.answers import silent
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, options_of
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates
from pytest_llmbench.checks.compute.rates import RateOptions, Rates, answered, ask_devices, subject
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict


class _Bandwidth(NodeCheck):
    name: str
    summary: str
    family = "compute"
    options: type[Strict] = RateOptions
    part: str
    action: str

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Measure, and judge."""
        answers = ask_devices(fleet, self, settings)
        rates = Rates(fleet.site, settings, options_of(self, settings, RateOptions).tolerance)
        for answer, data in answered(answers):
            for name, value in self.bandwidths(data).items():
                rates.add(answer, name, value / 1e9, "GB/s")
        devices = {f"{answer.host} {subject(fleet.site, answer)}": data for answer, data in answered(answers)}
        return Report(
            findings=(*rates.judge(self.action), *rates.compare(self.action)),
            readings=tuple(rates.readings),
            unjudged=silent(answers),
            unbounded=rates.unbounded,
            notes=tuple(rates.notes()),
            evidence={device: getattr(data, self.part) for device, data in devices.items()},
        )

    def bandwidths(self, data: DeviceRates) -> dict[str, float]:
        """Bandwidths of one device, B/s."""
        raise NotImplementedError


class MemoryBandwidth(_Bandwidth):
    """The triad of STREAM in each device's own memory, all devices of a node at once."""

    name = "memory_bandwidth"
    summary = "bandwidth of the memory of every GPU (or of the host), against references and the other nodes"
    #: statistic memory_bandwidth.memory_triad: STREAM's triad in a device's own memory
    statistics: Mapping[str, str] = {"memory_triad": "GB/s"}
    part, action = "memory", "check the memory's clock and its ECC and remapped rows"

    def bandwidths(self, data: DeviceRates) -> dict[str, float]:
        """The triad, B/s."""
        return {} if data.memory is None else {"memory_triad": data.memory}


class HostDeviceBandwidth(_Bandwidth):
    """Copies between pinned memory of the host and each GPU: one GPU after the other, and all of a node at once."""

    name = "host_device_bandwidth"
    summary = "bandwidth between the host and every GPU, alone and with all GPUs of the node at once"
    statistics: Mapping[str, str] = {
        "host_to_device": "GB/s",  #: statistic host_device_bandwidth.host_to_device: copy from pinned memory to one GPU
        "device_to_host": "GB/s",  #: statistic host_device_bandwidth.device_to_host: copy from one GPU to pinned memory
        #: statistic host_device_bandwidth.host_to_device_all: copy to the GPUs, all GPUs of a node at once
        "host_to_device_all": "GB/s",
        #: statistic host_device_bandwidth.device_to_host_all: copy from the GPUs, all GPUs of a node at once
        "device_to_host_all": "GB/s",
    }
    part, action = "host_device", "check the width and speed of the PCIe link, and that it is bound to its own socket"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Measure, and judge, where there are GPUs."""
        if fleet.site.device == "cpu":
            return Report(skip="the nodes have no GPUs: there is nothing to copy to")
        return super().run(fleet, settings)

    def bandwidths(self, data: DeviceRates) -> dict[str, float]:
        """The copies in each direction, B/s."""
        return {} if data.host_device is None else data.host_device.model_dump()
