"""The measured matrix-product rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest
import torch

from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.training import matmul

Measure = Callable[..., float]


@pytest.fixture
def measure(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure]:
    """Measure in a run of one rank."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with process_group(context) as device:
        yield lambda **options: matmul.measure(device, torch.float32, **options)


def test_the_rate_is_the_median_of_the_blocks(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 ms for a product of 2 x 1024^3 operations, slow first blocks leave no trace in the rate."""
    slowness = chain([100.0, 1.0, 50.0, 50.0], repeat(1.0))

    def block(*_: torch.Tensor, products: int) -> float:
        return next(slowness) * products * 1e-3

    monkeypatch.setattr(matmul, "_block", block)
    assert measure(seconds=0.01) == pytest.approx(2 * 1024**3 / 1e-3)


def test_a_real_rate_is_that_of_a_real_machine(measure: Measure) -> None:
    """Measured for real, the rate lies between a pocket calculator's and a supercomputer's."""
    assert 1e8 < measure(seconds=0.1) < 1e15
