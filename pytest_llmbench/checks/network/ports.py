"""Measures NICs by perftest's `ib_write_bw` where it is installed, and compares each port with its link."""

from collections import defaultdict
from collections.abc import Sequence

from pytest_llmbench.checks.answers import read_answers
from pytest_llmbench.checks.base import Check, Fleet, Probe
from pytest_llmbench.checks.findings import judge_by_physics
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.checks.network.nodes.write_bw import PortRates
from pytest_llmbench.checks.network.tournament import schedule
from pytest_llmbench.core.record.health import Reading, Report
from pytest_llmbench.judging.nics import Nics
from pytest_llmbench.judging.physics import expect_port

_ENTRY = "pytest_llmbench.checks.network.nodes.write_bw:measure"
_ACTION = (
    "check its cable, its PCIe link (lspci -vv: LnkSta) and its switch port, and swap them with those of a good port"
)
_PAIRS, _TIMEOUT_S = 2, 30.0


def add_ports(check: Check, report: Report, fleet: Fleet, machines: Machines | None, hosts: Sequence[str]) -> Report:
    """A report with the rate of each port that carries collectives; a port counts as its best pair does.

    EFA has other programs. A measurement that fails is a note: firewalls and limits of memory may refuse it.
    """
    known = {host: machines.nics(host) for host in hosts if host in machines.facts} if machines else {}
    ports = {
        host: [port for port in machines.facts[host].own_ports if port.device in nics.devices and port.active]
        for host, nics in known.items()
        if machines and isinstance(nics, Nics) and machines.facts[host].write_bw
    }
    ports = {host: own for host, own in ports.items() if own and all(port.link_layer != "Unspecified" for port in own)}
    if len(ports) < 2:
        return report
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
    readings = [
        Reading(host=host, subject=device, statistic="port_write_bw", value=rate, unit="Gb/s", nodes=2)
        for (host, device), rate in best.items()
    ]
    by_name = {(host, port.device): port for host, own in ports.items() for port in own}
    bounds = {end: expect_port(port.rate_gbits or 0, port.pcie_gen, port.pcie_width) for end, port in by_name.items()}
    pairs = [(reading, bounds[str(reading.host), reading.subject]) for reading in readings]
    findings = [found for reading, bound in pairs for found in judge_by_physics(reading, bound, _ACTION)]
    lines = dict.fromkeys(f"port_write_bw: physics expects {bound}" for _, bound in pairs)
    notes = [f"ib_write_bw: {' '.join(end)}: {why}" for end, why in failed.items() if end not in best]
    return report.model_copy(
        update={
            "findings": (*report.findings, *findings), "readings": (*report.readings, *readings),
            "bounds": (*report.bounds, *lines), "notes": (*report.notes, *notes),
        }
    )  # fmt: skip
