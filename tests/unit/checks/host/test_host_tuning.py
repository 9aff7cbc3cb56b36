"""Hints: each from what the kernel says, and none where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.checks.host.tuning import huge_pages, of_gpus, of_host, swap

WELL: dict[str, Any] = {
    "iommu_options": ["iommu=pt"], "transparent_hugepage": "always [madvise] never", "numa_balancing": "0",
    "numa_nodes": 2, "governors": {"performance": 96}, "iommu_groups": {"identity": 40}, "acs": [], "swap": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"governors": {"performance": 95, "powersave": 1}}, "CPU governor"),
        ({"governors": {}}, None),
        ({"numa_balancing": "1"}, "NUMA balancing"),
        ({"numa_balancing": "1", "numa_nodes": 1}, None),
        ({"numa_balancing": None}, None),
        ({"transparent_hugepage": "always madvise [never]"}, "transparent huge pages"),
        ({"transparent_hugepage": None}, None),
        ({"swap": 2**30}, "swap"),
        ({"swap": 2**20}, None),
        ({"iommu_groups": {"DMA-FQ": 40}}, "IOMMU"),
        ({"iommu_groups": {}}, None),
        ({"acs": ["0000:00:01.0"]}, "PCI ACS"),
        ({"acs": None}, None),
    ],
)
def test_hints(changes: dict[str, Any], what: str | None) -> None:
    """Each alone."""
    told = {**WELL, **changes}
    assert [subject for subject, _, _ in (*of_host(told), *of_gpus(told))] == ([what] if what else [])


def test_the_setting_in_brackets_is_the_one() -> None:
    """As the kernel writes it."""
    assert huge_pages(WELL) == "madvise"
    assert huge_pages({"transparent_hugepage": None}) == "unknown"


def test_swap_in_use() -> None:
    """In bytes."""
    assert swap("SwapTotal:    2048 kB\nSwapFree:      1024 kB\n") == 2**20
    assert swap("") == 0
