"""Which node of a run was slow, where what its ranks measured of it says so."""

from typing import Any

import pytest

from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.judging.findings import slowest_node


def ranks(*rates: float | None, device: str = "NVIDIA H200", per_node: int = 2) -> list[RankInfo]:
    return [
        RankInfo(
            rank=rank, host=f"n{rank // per_node}", pid=rank + 1, local_rank=rank % per_node, device=device,
            versions={}, ended=True, matmul_flops_per_s=None if rate is None else 1e12 * rate,
        )
        for rank, rate in enumerate(rates)
    ]  # fmt: skip


def clocks(*mhz: float | None) -> list[GpuTelemetry]:
    told: list[dict[str, Any]] = [
        {"rank": rank, "gpu": f"GPU-{rank}", "sm_clock_mhz": clock} for rank, clock in enumerate(mhz)
    ]
    return [GpuTelemetry(**each) for each in told]


def test_the_node_of_a_slow_gpu_is_named() -> None:
    told = slowest_node(ranks(700, 702, 701, 620, 699, 700), [])
    assert told == (
        "slow node: n1, by its matrix products: 620 TFLOP/s on rank 3, 11.4 % less than the 699.5 TFLOP/s of the "
        "slowest GPU of another node"
    )
    told = slowest_node(ranks(700, 700, 700, 700), clocks(1200, 1500, 1490, 1500))
    assert told is not None
    assert told.startswith("slow node: n0, by its SM clock: 1200 MHz on rank 0, 19.5 % less")


@pytest.mark.parametrize("rates", [(700, 702, 701, 695, 699, 700), (700, 690, 695, 700)])
def test_nodes_in_good_order_are_not_accused(rates: tuple[float, ...]) -> None:
    told = slowest_node(ranks(*rates), clocks(*[1500.0] * len(rates)))
    assert told == "no node stands out by its GPUs' matrix products and SM clock; this leaves out links and storage"


@pytest.mark.parametrize(
    "of",
    [ranks(700, 600), ranks(1, 2, device="cpu", per_node=1), ranks(700, 700, 600, None), []],
    ids=["one node", "CPUs", "half of the ranks", "a framework's log"],
)
def test_nothing_is_said_without_figures_of_all(of: list[RankInfo]) -> None:
    """One node has no other, CPUs are never steady, and what some ranks measured is no comparison."""
    assert slowest_node(of, clocks(1500)) is None
