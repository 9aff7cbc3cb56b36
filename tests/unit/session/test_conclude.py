"""What becomes of a run's log: metrics, or the reason why there are none."""

from __future__ import annotations

from typing import Literal

import pytest

from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries
from pytest_llmbench.judging.sanity import Evidence
from pytest_llmbench.session.ending.conclude import judged
from tests.unit.judging.conftest import small

Kind = Literal["ranks", "command"]
SYSTEM = load_system("H200", [shipped("systems")])


def evidence(gpus: int, last_s: float, kind: Kind) -> Evidence:
    """A run of 12 steps of 10 ms each, but for the last."""
    recipe = small(warm_up={"steps": 2})
    steps = tuple(
        Step(
            step=number, seconds=last_s if number == 12 else 0.01, tokens=recipe.tokens_per_step, samples=8, ranks=1,
            loss=3.0 - number / 12, grad_norm=1.0,
        )
        for number in range(1, 13)
    )  # fmt: skip
    topology = Topology(nodes=1, gpus_per_node=gpus)
    own = RankInfo(
        rank=0, host="n0", pid=1, local_rank=0, device="NVIDIA H200" if gpus else "cpu", versions={}, ended=True,
        matmul_flops_per_s=1e10,
    )  # fmt: skip
    series = StepSeries(ranks=(own,), steps=steps)
    return Evidence(
        recipe=recipe, topology=topology, series=series, hosts=("n0",), wall_s=1.0, gpu=None,
        kind=kind,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "last_s", "kind", "implausible"),
    [(1, 0.01, "ranks", False), (1, 1e-4, "ranks", True), (0, 1e-4, "ranks", False), (1, 1e-4, "command", False)],
    ids=["steady", "a GPU of ours", "a CPU", "a framework's clock"],
)
def test_a_single_step_is_held_against_the_hardware_where_its_clock_is_the_gpus(
    gpus: int, last_s: float, kind: Kind, implausible: bool
) -> None:
    """Elsewhere only all of them together are."""
    found = judged(evidence(gpus, last_s, kind), SYSTEM, None)
    assert (found["problem"] is not None) == implausible
    assert bool(found["metrics"]) != implausible
    if implausible:
        assert found["problem"].kind == "implausible"
        assert found["problem"].message.startswith("step 12 took 0.0001 s, which would be a share of the measured")
