"""Checks of bandwidth: memory of each device, and copies between host and GPUs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

from pytest_llmbench.checks.answers import silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, options_of
from pytest_llmbench.checks.compute.nodes.answer import CopyRates, DeviceRates
from pytest_llmbench.checks.compute.rates import DeviceCheck, RateOptions, Rates, list_answered, subject
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.core.record.health import Finding, Reading, Report
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.physics import NoLaw, PhysicsResult
from pytest_llmbench.judging.transport import FAR_CORES, FAR_CORES_CURE


class _Bandwidth(DeviceCheck):
    options: type[Strict] = RateOptions
    action: str

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        answers = self.ask(fleet, settings)
        machines = Machines.ask(fleet)
        tolerance = options_of(self, settings, RateOptions).tolerance
        rates = Rates(
            fleet.site, settings, tolerance, partial(self.expect, machines) if machines else None,
            partial(self.explain, machines, answers) if machines else None,
        )  # fmt: skip
        evidence = {}
        for answer, data in list_answered(answers):
            measured = getattr(data, self.part)
            evidence[f"{answer.host} {subject(fleet.site, answer)}"] = measured
            for name in self.statistics:
                value = getattr(measured, name) if isinstance(measured, CopyRates) else measured
                rates.add(answer, name, value / 1e9, "GB/s")
        return Report(
            findings=(*rates.judge(self.action), *rates.compare(self.action)), readings=tuple(rates.readings),
            unjudged=silent(answers), unbounded=rates.unbounded, bounds=rates.lines(), notes=tuple(rates.notes()),
            evidence={**evidence, **(machines.evidence if machines else {})},
        )  # fmt: skip

    @abstractmethod
    def expect(self, machines: Machines, reading: Reading) -> PhysicsResult:
        """The law for one reading."""

    def explain(self, machines: Machines, answers: Sequence[Answer[DeviceRates]], missed: Finding) -> tuple[str, str]:
        """The cause of a low rate and the cure of a setting, as far as they are known."""
        return "", ""


class MemoryBandwidth(_Bandwidth):
    """The triad of STREAM in each device's own memory, all devices of a node at once."""

    name = "memory_bandwidth"
    summary = "bandwidth of the memory of every GPU (or of the host), against references and the other nodes"
    #: statistic memory_bandwidth.memory_triad: STREAM's triad in a device's own memory
    statistics: Mapping[str, str] = {"memory_triad": "GB/s"}
    part, action = "memory", "check the memory's clock and its ECC and remapped rows"

    def expect(self, machines: Machines, reading: Reading) -> PhysicsResult:
        return machines.memory(reading)


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
        if fleet.site.device == "cpu":
            return Report(skip="the nodes have no GPUs: there is nothing to copy to")
        return super().run(fleet, settings)

    def explain(self, machines: Machines, answers: Sequence[Answer[DeviceRates]], missed: Finding) -> tuple[str, str]:
        site = machines.site
        copies = next(
            data.host_device
            for answer, data in list_answered(answers)
            if (answer.host, subject(site, answer)) == (missed.host, missed.subject)
        )
        if copies is None:
            return "", ""
        if not copies.pinned:
            return "the memory of the host is not pinned (pageable)", "see why the driver pins no memory here"
        if link := machines.slow_link(missed, copies.path):
            return link, ""
        return (FAR_CORES, FAR_CORES_CURE) if copies.path.far else ("", "")

    def expect(self, machines: Machines, reading: Reading) -> PhysicsResult:
        if reading.statistic.endswith("_all"):
            return NoLaw("GPUs that copy at once share the memory of the host")
        return machines.host_copy(reading, to_device=reading.statistic == "host_to_device")
