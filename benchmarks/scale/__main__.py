"""How long checks of a large cluster take to plan and judge, and whether planted faults are named and nothing else.

    python -m benchmarks.scale --nodes 125 --repeats 50 --seed 1

The nodes are simulated: 8 × H100 with 8 × 400 Gb/s each, 8 nodes behind a leaf switch and 16 in a rack. They answer the
probes of the network checks and those of RDMA ports and hosts, by the arithmetic of the planted fault with noise of
1 %; the checks that run are the real ones. Each repeat plants one fault at a random place:

    node         all pairs of a node at 0.6 of their rate
    nic          a port with half of its lanes, and its rail of that node at half rate
    leaf         all pairs through the uplinks of a leaf switch at half rate
    rack         all pairs of nodes of a rack at half rate
    everything   all pairs at 3 GB/s, as over TCP
    nothing      no fault

A repeat is right if the findings that fail, and the nodes without a verdict, are those of the fault. The program ends
with 1 if one is wrong.
"""

import argparse
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.scale.cluster import CHECKS, FAULTS, Cluster
from benchmarks.scale.session import run_session
from pytest_llmbench.checks.base import CheckSettings, get_check
from pytest_llmbench.core.record.health import Report


def run_checks(cluster: Cluster) -> dict[str, Report]:
    """Run its checks on a cluster: those behind the gate on all nodes, so that each fault is seen by all."""
    return {name: get_check(name).run(cluster, CheckSettings()) for name in cluster.checks}


def accused(reports: Mapping[str, Report]) -> set[str]:
    """Nodes, parts and places with a finding that fails."""
    findings = (finding for report in reports.values() for finding in report.findings if finding.severity.fails)
    return {f"{finding.host or ''} {finding.subject}".strip() for finding in findings}


def judge(cluster: Cluster, reports: Mapping[str, Report]) -> str:
    """The way in which a repeat is wrong; empty for a right one."""
    named, due = accused(reports), cluster.due
    problems = [f"{name}: {report.problem or report.skip}" for name, report in reports.items()
                if name != "rdma_errors" and (report.problem or report.skip)]  # fmt: skip
    if cluster.fault == "everything":  # all of them, by whatever part
        hosts = {name.split()[0] for name in named} & {*cluster.hosts}
        unjudged = {host for report in reports.values() for host in report.unjudged}
        problems += (
            [f"{len(hosts | unjudged)} of {cluster.nodes} named"] if len(hosts | unjudged) < cluster.nodes else []
        )
    else:
        parts = {part.partition(" rail ")[0] for part in due} | (
            {cluster.node} if cluster.fault == "nic" else set[str]()
        )
        wrong = {name for name in named if name.partition(" rail ")[0] not in parts}
        missed = due - named
        problems += [f"accused: {', '.join(sorted(wrong)[:5])}"] if wrong else []
        problems += [f"missed: {', '.join(sorted(missed)[:5])}"] if missed else []
    return "; ".join(problems)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the faults; 1 if one repeat is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS)
    parser.add_argument("--checks", nargs="*", default=CHECKS, choices=CHECKS)
    parser.add_argument("--session", action="store_true", help="one whole session of pytest with all checks instead")
    options = parser.parse_args(arguments)
    failed = 0
    if options.session:
        for fault in options.faults:
            folder = Path(mkdtemp(prefix=f"scale-{fault}-"))
            figures = run_session(folder, Cluster(options.nodes, fault, options.seed))
            print(fault, folder, *(f"{name} {value:.6g}" for name, value in figures.items()), flush=True)
        return 0
    for fault in options.faults:
        wrong, began, cpu = [], time.monotonic(), time.process_time()
        for number in range(options.repeats):
            cluster = Cluster(options.nodes, fault, options.seed * 1000 + number, checks=options.checks)
            if said := judge(cluster, run_checks(cluster)):
                wrong.append(f"seed {cluster.seed}: {said}")
        took, cpu = time.monotonic() - began, time.process_time() - cpu
        failed += len(wrong)
        print(f"{fault:10} {options.repeats - len(wrong)}/{options.repeats} right, {took / options.repeats:.2f} s and "
              f"{cpu / options.repeats:.2f} s of CPU a repeat", *wrong[:5], sep="\n    ", flush=True)  # fmt: skip
    print(f"{options.nodes} nodes, {len(options.checks)} checks; at most "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of memory")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
