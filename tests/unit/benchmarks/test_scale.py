"""The benchmark of large clusters, on a small one: each planted fault is named, and nothing else."""

import pytest

from benchmarks.scale.__main__ import judge, main, run_checks
from benchmarks.scale.cluster import FAULTS, Cluster

CHECKS = ("rdma_ports", "pairs")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_nothing_else(fault: str) -> None:
    cluster = Cluster(40, fault, 3, checks=CHECKS)
    reports = run_checks(cluster)
    assert judge(cluster, reports) == ""
    # All nodes together are judged, too, but for those that are all bad.
    whole = [line for line in reports["pairs"].bounds if line.startswith("group_busbw: physics expects")]
    assert len(whole) == (0 if fault == "everything" else 2)


def test_a_fault_that_nothing_names_is_an_error() -> None:
    assert main(["--nodes", "8", "--repeats", "1", "--faults", "node", "--checks", "rdma_ports"]) == 1
