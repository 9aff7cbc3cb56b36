"""Measures NICs by perftest's `ib_write_bw` where it is installed, and compares each port with its link."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_llmbench.checks.answers import read_answers
from pytest_llmbench.checks.base import Check, CheckSettings, Fleet, Probe
from pytest_llmbench.checks.findings import Bounds
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.checks.network.nodes.write_bw import PortRates
from pytest_llmbench.checks.network.tournament import schedule
from pytest_llmbench.core.record.health import Reading, Report
from pytest_llmbench.core.wire.machine import MachinePort
from pytest_llmbench.judging.nics import Nics
from pytest_llmbench.judging.physics import expect_port

_ENTRY = "pytest_llmbench.checks.network.nodes.write_bw:measure"
_ACTION = (
    "check its cable, its PCIe link (lspci -vv: LnkSta) and its switch port, and swap them with those of a good port"
)
_PAIRS, _TIMEOUT_S = 2, 30.0


def add_ports(
    check: Check, report: Report, fleet: Fleet, settings: CheckSettings, machines: Machines | None, hosts: Sequence[str]
) -> Report:
    """A report with the rate of each port that carries collectives; a port counts as its best pair does.

    EFA has other programs. A measurement that fails is a note: firewalls and limits of memory may refuse it. A node
    is unjudged if a reference asks for a rate that it lacks.
    """
    ports = _choose_ports(machines, hosts)
    best, failed = _measure(check, fleet, ports) if len(ports) > 1 else ({}, {})
    laws = {
        (host, port.device): expect_port(port.rate_gbits or 0, port.pcie_gen, port.pcie_width)
        for host, own in ports.items()
        for port in own
    }
    gpus = 2 * min(fleet.site.gpus_per_node, 1)  # as of a pair on one rail
    readings = [
        Reading(host=host, subject=device, statistic="port_write_bw", value=rate, unit="Gb/s", nodes=2, gpus=gpus)
        for (host, device), rate in best.items()
    ]
    own_bounds = [bound for bound in settings.references if bound.statistic == "port_write_bw"]
    own_settings = settings.model_copy(update={"references": own_bounds})
    bounds = Bounds(fleet.site, own_settings, law=lambda reading: laws[str(reading.host), reading.subject])
    silent = set(hosts) - {host for host, _ in best}
    lacking = {host: reason for host in silent for reason in bounds.unmeasured((), None, 2, gpus)}
    notes = [f"ib_write_bw: {' '.join(end)}: {why}" for end, why in failed.items() if end not in best]
    return report.model_copy(
        update={
            "findings": (*report.findings, *bounds.judge(readings, action=_ACTION)),
            "readings": (*report.readings, *readings), "bounds": (*report.bounds, *bounds.lines(readings)),
            "notes": (*report.notes, *notes), "unjudged": {**lacking, **report.unjudged},
        }
    )  # fmt: skip


def _choose_ports(machines: Machines | None, hosts: Sequence[str]) -> dict[str, list[MachinePort]]:
    """The active ports of each node that has the program, if all of its ports can be measured."""
    ports: dict[str, list[MachinePort]] = {}
    for host in hosts:
        facts = machines.facts.get(host) if machines else None
        nics = machines.nics(host) if machines and facts and facts.write_bw else None
        if facts and isinstance(nics, Nics):
            own = [port for port in facts.own_ports if port.device in nics.devices and port.active]
            if own and all(port.link_layer != "Unspecified" for port in own):
                ports[host] = own
    return ports


def _measure(
    check: Check, fleet: Fleet, ports: Mapping[str, Sequence[MachinePort]]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], str]]:
    """The best rate of each port, Gb/s, and the reasons for failed measurements, by host and device."""
    names, numbers = tuple(ports), {host: number for number, host in enumerate(ports)}
    config = {
        "hosts": names, "timeout_s": _TIMEOUT_S,
        "rounds": [[[numbers[host] for host in pair] for pair in pairs] for pairs in schedule(list(names), _PAIRS)],
        "devices": {host: [(port.device, port.port) for port in own] for host, own in ports.items()},
    }  # fmt: skip
    probe = Probe(name="write-bw", entry=_ENTRY, config=config, deadline_s=check.deadline_s, hosts=names, together=True)
    best: dict[tuple[str, str], float] = defaultdict(float)
    failed: dict[tuple[str, str], str] = {}
    for answer in read_answers(fleet.run([probe])[0], PortRates):
        if answer.data is None:
            failed[answer.host, "all ports"] = str(answer.why)
        for rate in answer.data.rates if answer.data else ():
            for end in ((answer.host, rate.device), (rate.partner, rate.partner_device)):
                if rate.gbit_s is None:
                    failed.setdefault(end, rate.error)
                else:
                    best[end] = max(best[end], rate.gbit_s)
    return best, failed
