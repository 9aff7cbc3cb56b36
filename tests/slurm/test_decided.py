"""Runs on two nodes that are made again until they decide, and one that ends as soon as it is decided."""

from typing import Any

import pytest

from tests.conftest import UserFolder
from tests.slurm.conftest import Queue

# As steps of the job that holds the nodes, and as jobs of their own.
HELD_OR_OWN = pytest.mark.parametrize("held", [True, False], ids=["held", "own"])


def speed(**bounds: str) -> dict[str, Any]:
    told = {"why": "an example", "source": "this test", "date": "2026-11-24", "applies_to": {"system": "slurm"}}
    return {"name": "speed", "statistic": "throughput", **told, **bounds}


def options(*, held: bool) -> tuple[str, ...]:
    return "--cluster", "slurm", "-n0", "-k", "tiny", *(("--nodes", "2") if held else ())


@HELD_OR_OWN
def test_further_runs_decide(user: UserFolder, queue: type[Queue], *, held: bool) -> None:
    """Each is a step of the same job, or a job of its own, and all are judged together."""
    # 1,280 words/s by its log. Runs may differ by 15 %: one does not decide on half of that, and two do. A step is so
    # long that a busy machine does not double it.
    bound = speed(at_least="640 words/s", between_runs="15 %") | {"runs": 3}
    user.recipe(nodes=2, steps=60, options={"logged_s": 0.2}, references=[bound])
    user.test()
    result = user.run(*options(held=held), "--llmbench-inconclusive", "rerun")
    assert result.returncode == 0, result.text
    told = result.case.properties
    runs = told["runs"].split(",")
    assert runs == ["tiny", *(f"tiny-repeat{number}" for number in range(2, len(runs) + 1))]
    # Two, unless the machine is so busy that one of them was held up.
    assert len(runs) in {2, 4}
    assert (told["verdict"], float(told["alpha"]), len(told["each_run"].split(","))) == (
        "PASS", 0.005 / len(runs), len(runs),
    )  # fmt: skip
    records = [result.record(key) for key in runs]
    assert [record["look"] for record in records] == [0, 1, 2, 2][: len(runs)]
    assert all(len(set(record["hosts"])) == 2 for record in records)
    assert len({record["job_id"] for record in records}) == (1 if held else len(runs))
    queue.wait_until_empty(result.session, 30)


@HELD_OR_OWN
def test_a_decided_run_ends_early(user: UserFolder, queue: type[Queue], *, held: bool) -> None:
    """The session's word reaches the ranks of both nodes, which end after the same step and give the nodes back."""
    user.recipe(nodes=2, steps=120, options={"step_s": 0.1}, references=[speed(at_least="0.01 words/s")])
    user.test()
    result = user.run(*options(held=held), "--llmbench-early-verdict")
    assert result.returncode == 0, result.text
    assert result.case.properties["verdict"] == "PASS"
    record = result.record()
    assert len(record["steps"]) < 120
    assert len({rank["host"] for rank in record["rank_info"]}) == 2
    assert {(rank["asked_to_end"], rank["end_steps"]) for rank in record["rank_info"]} == {(True, len(record["steps"]))}
    assert (record["early"]["look"], record["early"]["done"]) == (record["early"]["looks"][-1], len(record["steps"]))
    queue.wait_until_empty(result.session, 30)
