"""The transport that NCCL used in a check, from its own log lines of a short step after the measurement."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_llmbench.checks.findings import explain, make_finding
from pytest_llmbench.checks.machine import Machines, domain_of
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.record.nccl import NcclLog
from pytest_llmbench.core.wire.answers import NcclLines
from pytest_llmbench.judging.nics import Nics, count_nics
from pytest_llmbench.judging.transport import Wiring, add_variables, judge_transport, reasons, why_unseen
from pytest_llmbench.readers.nccl import NcclReader

GLOO = "NCCL did not run: gloo"
_FAST_GBITS = 50
#: finding over_tcp: nodes exchanged data over TCP despite a faster network
#: finding no_p2p: GPUs of a node exchanged data over host memory or the network
#: finding no_gdr: NICs did not read the memory of GPUs behind the same PCIe switch
#: finding lost_nics: NCCL uses fewer NICs than the node has
#: finding nvls_off: all_reduce went without NVLink SHARP despite the GPUs
#: finding mnnvl_off: trays of a rack of NVL72 did not exchange data over NVLink
#: finding few_cores: the ranks of a node have fewer cores than ranks
#: finding far_cores: ranks run on another socket than their GPUs
#: finding acs: PCI ACS sends data through the processor, and the rate is low
#: finding slow_setting: a variable forces a slow transport
_SEVERITIES: Mapping[str, Severity] = {"fail": Severity.CONFIGURE, "warn": Severity.MONITOR}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """NCCL's lines by host, and the reasons for hosts without any."""

    logs: Mapping[str, NcclLog] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)  # of all ranks of a host together
    far: Mapping[str, int] = field(default_factory=dict)  # ranks of a host on another socket than their GPU

    @property
    def nics(self) -> int | None:
        """The most NICs that NCCL lists on a host; None without any."""
        return max((int(log.facts["nics"].value) for log in self.logs.values() if "nics" in log.facts), default=None)

    def add_to(
        self, report: Report, wirings: Mapping[str, Wiring], hosts: Sequence[str], *,
        shares: Mapping[str, float | None],
    ) -> Report:  # fmt: skip
        """A report with findings about the transport, which also explain numbers that missed a bound.

        `wirings` are the facts of the hosts; `shares` are measured rates as a share of what physics expects. A finding
        about all hosts of a check on the cluster is of none of them. A host whose way stayed unseen is unjudged.
        """
        known = {name: share for name, share in shares.items() if share is not None}
        # Hosts under names of NCCL's own are of one kind.
        usual = next(iter(wirings.values()), Wiring())
        wired = {
            host: replace(
                wirings.get(host, usual), shares=known, cores=self.cores.get(host), far=self.far.get(host, 0)
            )
            for host in self.logs
        }  # fmt: skip
        judged = judge_transport(self.logs, wired)
        why, cure = reasons(judged), next((one.cure for one in judged), "")
        findings = [explain(finding, why, cure) for finding in report.findings]
        findings += [
            make_finding(host if host in hosts else None, "", one.kind, _SEVERITIES[one.level], one.text, one.cure)
            for one in judged for host in one.hosts
        ]  # fmt: skip
        unread = sum(log.unread for log in self.logs.values())
        line = next((log.unread_line for log in self.logs.values() if log.unread), "")
        notes = [f"{unread} lines of NCCL cannot be read, the first: `{line}`"] if unread else []
        return report.model_copy(
            update={
                "findings": tuple(findings),
                "notes": (*report.notes, *notes),
                "unjudged": {**self.unseen, **report.unjudged},
                "evidence": {**report.evidence, "transport": self.summary()},
            }
        )

    def summary(self) -> dict[str, object]:
        """The facts of the lines as plain data, hosts alike together."""
        alike: dict[str, tuple[list[str], dict[str, object]]] = {}
        for host, log in self.logs.items():
            plain = log.summary()
            alike.setdefault(repr({**plain, "lines": 0}), ([], plain))[0].append(host)
        return {"ways": [{"hosts": hosts, **plain} for hosts, plain in alike.values()], "unseen": dict(self.unseen)}


def read_look(
    answers: Iterable[tuple[str | None, NcclLines | None]], hosts: Sequence[str], silent: Mapping[str, str]
) -> Look:
    """Read the lines of ranks, each with its host; None for lines of ranks of all hosts.

    `silent` has the reasons for hosts without an answer.
    """
    reader, variables, cores = NcclReader(), dict[str, dict[str, str]](), dict[str, set[int]]()
    far: Counter[str] = Counter()
    for host, answer in answers:
        for line in answer.lines if answer else ():
            reader.take(line, host)
        for name in hosts if host is None else (host,):
            variables.setdefault(name, {}).update(answer.variables if answer else {})
            cores.setdefault(name, set()).update(answer.cores if answer else ())
            far[name] += bool(answer and answer.far)
    logs = {host: add_variables(log, variables.get(host, {})) for host, log in reader.logs().items() if host}
    whole = next(iter(logs.values()), NcclLog())
    # One program prints the lines of all hosts under names of its own.
    asked = {host: logs.get(host, NcclLog() if set(logs) <= set(hosts) else whole) for host in hosts}
    unseen = {host: why for host, log in asked.items() if (why := why_unseen(log)) is not None}
    missing = {host: f"transport not seen: {reason}" for host, reason in silent.items() if host in unseen}
    counts = {host: len(own) for host, own in cores.items() if own}
    return Look(logs=logs, unseen={**unseen, **missing}, cores=counts, far=far)


def wire(machines: Machines | None, look: Look, hosts: Sequence[str]) -> dict[str, Wiring]:
    """The facts of hosts that the rules need; empty where they are unknown."""
    if machines is None:
        return {}
    facts = {host: machines.facts[host] for host in hosts if host in machines.facts}
    domains = {host: domain_of(host, node, {}) for host, node in facts.items()}
    return {host: _wire(machines, look, host, domains) for host, node in facts.items() if node.gpus}


def _wire(machines: Machines, look: Look, host: str, domains: Mapping[str, str]) -> Wiring:
    node, gpus = machines.facts[host], machines.site.gpus_per_node
    nics = count_nics(node, machines.site.network, machines.site.system, look.nics)
    carrying = set(nics.devices) if isinstance(nics, Nics) else set()
    ports = [port for port in node.own_ports if port.active]
    # A front end of 25 Gb/s is as fast by TCP as by RoCE.
    roce = {port.device for port in ports if port.device in carrying and (port.rate_gbits or 0) >= _FAST_GBITS}
    fast = [port for port in ports if port.link_layer != "Ethernet" or port.device in roce]
    own = [port for port in fast if port.device in carrying]
    versions = [gpu.nvlink_version for gpu in node.gpus if gpu.nvlinks]
    racked = domains[host] != host
    return Wiring(
        gpus=gpus, nodes=len(domains), nvlink=bool(versions), nvlink_version=versions[0] if versions else None,
        all_to_all=bool(versions) and node.joined is not False, nics=nics.count if isinstance(nics, Nics) else None,
        fast_ports=tuple(port.device for port in fast),
        near=None if node.virtual or not own else all(map(node.near, own)), virtual=node.virtual,
        multicast=all(gpu.multicast is not False for gpu in node.gpus), acs=node.acs or (),
        rack=gpus * list(domains.values()).count(domains[host]) if racked else None,
        domains=len(set(domains.values())) if racked else None,
    )  # fmt: skip


def merge_for_cluster(report: Report, hosts: Sequence[str]) -> Report:
    """A report of a check on the cluster: a finding that all hosts have is one, of the cluster."""
    counts = Counter((finding.kind, finding.message) for finding in report.findings)
    merged: dict[Finding, None] = {}
    for finding in report.findings:
        of_all = len(hosts) > 1 and counts[finding.kind, finding.message] == len(hosts)
        merged[finding.model_copy(update={"host": None}) if of_all else finding] = None
    return report.model_copy(update={"findings": tuple(merged)})
