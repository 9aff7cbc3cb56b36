"""The measured matrix-product rate."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest
import torch

from pytest_llmbench.judging.flops import doubt
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.rendezvous import process_group
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul

Measure = Callable[..., float]


@pytest.fixture
def measure(context: RankContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure]:
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


SLOWED = 1.0 / 3


@pytest.mark.parametrize(("shown", "measured", "known"), [
    ([1.0, 0.9], 2, True),
    ([SLOWED, 1.0, 0.95], 3, True),  # before the training
    ([1.0, SLOWED, 0.4, 0.9], 4, True),  # after it
    ([1.0, *[SLOWED] * 9], 6, False),  # and for so long
], ids=["nothing beside it", "a load before", "a load after", "a load that stays"])  # fmt: skip
def test_a_load_beside_one_measurement_does_not_lower_the_ceiling(
    shown: list[float], measured: int, known: bool, context: RankContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU measures after the training until it has reached its highest rate twice, and all measurements are kept."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    load = iter(shown)

    def measure(*_: object) -> float:
        share = next(load)
        monkeypatch.setattr(matmul, "_block", lambda *_, products: products * 1e-3 / share)
        return real(torch.device("cpu"), torch.float32, 0.001)

    real = matmul.measure
    monkeypatch.setattr(matmul, "measure", measure)
    with process_group(context) as device, StepLog(context) as log:
        log.start("cpu", {})
        with matmul.ceiling(log, device, torch.float32):
            assert next(iter(read_steps(context.folder).ranks)).matmul_rates == pytest.approx(
                [shown[0] * 2e3 * 1024**3]
            )
        (info,) = read_steps(context.folder).ranks
    assert info.matmul_rates == pytest.approx([share * 2e3 * 1024**3 for share in shown[:measured]])
    assert info.matmul_flops_per_s == pytest.approx(2e3 * 1024**3)
    assert (doubt(info.matmul_rates) == 1.0) == known
