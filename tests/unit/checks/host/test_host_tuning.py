"""Hints: each from what the kernel says, and none where all is well."""

from typing import Any

import pytest

from pytest_llmbench.checks.host.tuning import gpu_hints, huge_pages, node_hints, swapped_bytes
from tests.support.fleet import TUNING


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
        ({"iommu_groups": {"DMA-FQ": 40}}, "IOMMU"),
        ({"iommu_groups": {}}, None),
        ({"acs": ("0000:00:01.0",)}, "PCI ACS"),
        ({"acs": None}, None),
    ],
)
def test_hints(changes: dict[str, Any], what: str | None) -> None:
    told = TUNING.model_copy(update=changes)
    assert [subject for subject, _, _ in (*node_hints(told, 0), *gpu_hints(told))] == ([what] if what else [])


@pytest.mark.parametrize(("swapped", "what"), [(2**30, ["swap"]), (2**20, [])])
def test_memory_that_is_swapped_out_is_a_hint(swapped: int, what: list[str]) -> None:
    assert [subject for subject, _, _ in node_hints(TUNING, swapped)] == what


def test_the_setting_in_brackets_is_the_one() -> None:
    assert huge_pages(TUNING) == "madvise"
    assert huge_pages(TUNING.model_copy(update={"transparent_hugepage": None})) == "unknown"


def test_swap_in_use() -> None:
    assert swapped_bytes("SwapTotal:    2048 kB\nSwapFree:      1024 kB\n") == 2**20
    assert swapped_bytes("") == 0
