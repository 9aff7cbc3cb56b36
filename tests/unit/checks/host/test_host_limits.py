"""Limits and memory, whose need follows from the size of the job, and hints about the kernel's tuning."""

import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import Answer, CheckSettings, Site, get_check
from pytest_llmbench.checks.host.limits import LimitsOptions, find_too_low, needs
from pytest_llmbench.checks.host.nodes.facts import ProcessLimits, ResourceLimits
from pytest_llmbench.checks.host.tuning import gpu_hints, huge_pages, node_hints
from pytest_llmbench.core.record.health import Report, Severity
from tests.support.fleet import HOST_FACTS, LIMITS, TUNING, UNLIMITED, ProcessFleet, cpu_site

GPUS = Site(system="test", nodes=2, gpus_per_node=8)
IPC_LOCK, SYS_RESOURCE = 1 << 14, 1 << 24


def told(soft: int | None, hard: int | None, **changes: Any) -> ProcessLimits:
    both = {
        name: ResourceLimits(nofile=limit, memlock=limit, nproc=limit)
        for name, limit in (("soft", soft), ("hard", hard))
    }
    return LIMITS.model_copy(update={**both, **changes})


@pytest.fixture
def few_files() -> Iterator[int]:
    """All that is started now may open no more than this many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nodes_with_a_low_limit_are_found(tmp_path: Path, few_files: int) -> None:
    """Both nodes are this machine, so both are found out; the hard limit of it is higher."""
    fleet = ProcessFleet(site=cpu_site(2), hosts=("a", "b"), folder=tmp_path, inherit=True)
    found = [each for each in get_check("limits").run(fleet, CheckSettings()).findings if each.subject == "nofile"]
    assert [finding.host for finding in found] == ["a", "b"]
    assert f"{few_files} open files allowed, 1024 needed" in found[0].message
    assert "`ulimit -n 1024` in `setup` of the system's file needs no root" in found[0].action


@pytest.mark.parametrize(("nodes", "files"), [(1, 1024), (32, 1024), (33, 1056), (64, 2048), (512, 16384)])
def test_open_files_follow_from_the_ranks(nodes: int, files: int) -> None:
    assert needs(told(0, 0), Site(system="s", nodes=nodes, gpus_per_node=8), LimitsOptions())["nofile"] == files


def test_processes_follow_from_ranks_and_cpus() -> None:
    assert needs(told(0, 0), GPUS, LimitsOptions())["nproc"] == 8 * (96 + 64)


def test_options_override() -> None:
    options = LimitsOptions(nofile=7, memlock=8, nproc=9)
    assert needs(told(0, 0), cpu_site(1), options) == {"nofile": 7, "memlock": 8, "nproc": 9}


@pytest.mark.parametrize(("soft", "capabilities", "subjects"), [
    (None, 0, []), (2**40, 0, ["memlock"]), (2**40, IPC_LOCK, []), (64, 0, ["nofile", "nproc", "memlock"]),
    (64, IPC_LOCK | SYS_RESOURCE, ["nofile"]),
])  # fmt: skip
def test_what_is_too_low_with_gpus(soft: int | None, capabilities: int, subjects: list[str]) -> None:
    """Locked memory must be unlimited; a capability that lifts a limit counts."""
    found = find_too_low("n", told(soft, soft, capabilities=capabilities), GPUS, LimitsOptions())
    assert [finding.subject for finding in found] == subjects


def test_locked_memory_is_no_matter_without_gpus() -> None:
    assert [each.subject for each in find_too_low("n", told(2**20, 2**20), cpu_site(1), LimitsOptions())] == []


def test_the_kernel_does_not_count_the_processes_of_root() -> None:
    found = find_too_low("n", told(2**10, 2**10, uid=0), cpu_site(900), LimitsOptions())
    assert [finding.subject for finding in found] == ["nofile"]


@pytest.mark.parametrize(("hard", "action"), [
    (None, "`ulimit -l unlimited` in `setup` of the system's file needs no root; the hard limit is unlimited"),
    (2**16, "only root can: raise memlock, soft and hard (now 65536)"),
])  # fmt: skip
def test_who_can_raise_it(hard: int | None, action: str) -> None:
    """A soft limit is raised by its user up to the hard one."""
    soft_and_hard = (UNLIMITED.model_copy(update={"memlock": limit}) for limit in (2**16, hard))
    node = LIMITS.model_copy(update=dict(zip(("soft", "hard"), soft_and_hard, strict=True)))
    (finding,) = find_too_low("n", node, GPUS, LimitsOptions())
    assert action in finding.action


def test_ulimit_takes_kib() -> None:
    node = told(1, None)
    found = {each.subject: each for each in find_too_low("n", node, GPUS, LimitsOptions(memlock=1025))}
    assert "`ulimit -l 2`" in found["memlock"].action


@pytest.mark.parametrize(("changes", "what"), [
    ({}, None), ({"governors": {"performance": 95, "powersave": 1}}, "CPU governor"), ({"governors": {}}, None),
    ({"numa_balancing": "1"}, "NUMA balancing"), ({"numa_balancing": "1", "numa_nodes": 1}, None),
    ({"numa_balancing": None}, None),
    ({"transparent_hugepage": "always madvise [never]"}, "transparent huge pages"),
    ({"transparent_hugepage": None}, None), ({"iommu_groups": {"DMA-FQ": 40}}, "IOMMU"),
    ({"iommu_groups": {}}, None), ({"acs": ("0000:00:01.0",)}, "PCI ACS"), ({"acs": None}, None),
])  # fmt: skip
def test_hints(changes: dict[str, Any], what: str | None) -> None:
    told = TUNING.model_copy(update=changes)
    assert [subject for subject, _, _ in (*node_hints(told, 0), *gpu_hints(told))] == ([what] if what else [])


@pytest.mark.parametrize(("swapped", "what"), [(2**30, ["swap"]), (2**20, [])])
def test_memory_that_is_swapped_out_is_a_hint(swapped: int, what: list[str]) -> None:
    assert [subject for subject, _, _ in node_hints(TUNING, swapped)] == what


def test_the_setting_in_brackets_is_the_one() -> None:
    assert huge_pages(TUNING) == "madvise"
    assert huge_pages(TUNING.model_copy(update={"transparent_hugepage": None})) == "unknown"


def run(folder: Path, sizes: Mapping[str, tuple[int, int]], **options: Any) -> Report:
    """Judge nodes with this memory in GiB, in all and available, which no test can have for real."""
    fleet = ProcessFleet(site=cpu_site(len(sizes)), hosts=tuple(sizes), folder=folder)
    fleet._known["host-facts"] = [
        Answer(
            host=host, rank=rank, local_rank=0,
            data={**HOST_FACTS.model_dump(), "memory": {"total": total << 30, "available": free << 30, "swapped": 0}},
        )
        for rank, (host, (total, free)) in enumerate(sizes.items())
    ]  # fmt: skip
    return get_check("memory").run(fleet, CheckSettings(options=options))


def test_a_node_that_lacks_a_module_is_found(tmp_path: Path) -> None:
    """Kernels reserve slightly different amounts of memory: such nodes count as equal."""
    report = run(tmp_path, {"a": (512, 500), "b": (511, 500), "c": (448, 440)})
    (finding,) = report.findings
    assert (finding.host, finding.severity) == ("c", Severity.ISOLATE)
    assert finding.message == "448.00 GiB; 511.00 GiB on b, a"
    assert len(report.readings) == 6


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, True), ({"available_percent": 25}, False), ({"available_gib": 30}, False), ({"available_gib": 31}, True)],
)
def test_memory_in_use(tmp_path: Path, options: dict[str, Any], found: bool) -> None:
    report = run(tmp_path, {"a": (64, 30)}, **options)
    assert [finding.kind for finding in report.findings] == (["memory_in_use"] if found else [])


def test_a_reference_of_this_system_counts(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    promised: dict[str, Any] = {
        "name": "contract", "statistic": "memory_total", "at_least": "1000000 GiB", "why": "promised", "source": "it",
        "date": "2026-01-01", "applies_to": {"system": "test"},
    }  # fmt: skip
    settings = CheckSettings.model_validate({"references": [promised], "options": {"available_gib": 0}})
    (finding,) = get_check("memory").run(fleet, settings).findings
    assert (finding.reference, finding.kind) == ("contract", "below_reference")
