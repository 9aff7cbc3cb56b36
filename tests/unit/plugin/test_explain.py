"""What a failing comparison says of where the run was, and of which node."""

import pytest

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.core.record.series import RankInfo
from pytest_llmbench.plugin.verdict.compare import Number
from pytest_llmbench.plugin.verdict.explain import _distance
from pytest_llmbench.plugin.verdict.measured import Measured, explain_comparison
from tests.support.shipped import shipped_recipes


@pytest.mark.parametrize(
    ("rates", "said"),
    [((700.0, 600.0), "slow node: n1, by its matrix products"), ((700.0, 699.0), "no node stands out")],
)
def test_the_slow_node_is_named(rates: tuple[float, ...], said: str) -> None:
    """Right below what was missed, where the ranks measured enough to tell."""
    ranks = tuple(
        RankInfo(
            rank=rank, host=f"n{rank}", pid=7, local_rank=0, device="NVIDIA H200", versions={},
            matmul_flops_per_s=1e12 * rate,
        )
        for rank, rate in enumerate(rates)
    )  # fmt: skip
    metric = Metric(value=150_000.0, unit="words/s", rule="words per second")
    record = RunRecord(
        session="s", key="opt125m", token="t", recipe=shipped_recipes()["opt125m"], system="any",
        cluster="slurm", allocation="run", nodes=2, ranks=2, gpus=2, folder="/runs/opt125m", hosts=("n0", "n1"),
        rank_info=ranks, metrics={"throughput": metric},
    )  # fmt: skip
    measured = Measured(Number(statistic="throughput", metric=metric, record=record))
    bound = Quantity("200000 words/s")
    assert not measured >= bound
    lines = explain_comparison(">=", measured, bound)
    assert lines is not None
    assert lines[0].startswith("measured 150,000 words/s is 25 % below the threshold 200,000 words/s")
    assert any(line.startswith(said) for line in lines[1:3])


@pytest.mark.parametrize(
    ("rate", "said"),
    [(3_459, "only 1.7 % of"), (10_050, "only 5 % of"), (90_000, "only 45 % of"), (110_000, "45 % below")],
)
def test_a_laptop_is_told_its_share_of_the_threshold(rate: float, said: str) -> None:
    """README shows such a line; on a machine that is twenty times faster its words stay the same."""
    assert _distance(Quantity(f"{rate} words/s"), Quantity("200000 words/s"), "below") == said
