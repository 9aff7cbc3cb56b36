"""Lambda's fork of DeepSpeed-Chat itself, on CPU ranks.

The environment's path `on_cpu` is a script that runs the `main.py` named by the variable `MAIN` without a GPU, and its
paths `opt_350m`, `actor` and `critic` are tiny models.
"""

import os
from pathlib import Path

import pytest

from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat.eval_batch import evaluate
from tests.conftest import UserFolder

FRAMEWORK = "deepspeed_chat"
SYSTEM = os.environ.get("LLMBENCH_DEEPSPEED_CHAT_SYSTEM")


@pytest.mark.parametrize(("recipe", "timed"), [
    ("chat_350m_bs24_zero0", 20), ("chat_350m_rm", 20), ("chat_13b_rlhf", 25),
], ids=["step1", "step2", "step3"])  # fmt: skip
def test_a_step_runs_and_is_judged(user: UserFolder, system_file: str, recipe: str, timed: int) -> None:
    """The tiny variant of a recipe of each step, through a whole session, and Lambda's file of its log."""
    result = user.run(f"--system={system_file}", "--scale", "smoke", "-n0", "-k", f"{recipe}-", timeout_s=600.0)
    verdicts = {case.properties["reference"]: case.properties["verdict"] for case in result.cases.values()}
    assert verdicts.pop("adds_up") == "PASS", result.text
    assert set(verdicts.values()) <= {"SKIP"}  # they are for GPUs
    record = result.record(recipe)
    log = Path(record["folder"]) / "logs" / "output.log"
    label, *head = log.read_text().splitlines()[:3]
    assert label.startswith("#llmbench run=")
    assert head == [f"{record['hosts'][0]} slots={record['ranks']}", ""]  # as in Lambda's own logs
    assert record["totals"]["execution_steps"] == timed
    assert record["metrics"]["reported_throughput"]["value"] > 0.0
    assert "mfu" not in record["metrics"]
    assert record["provenance"]["git_commit"]
    assert record["versions"] == {}  # nothing of ours ran: the framework's own are facts
    if verdicts:  # a bound to evaluate by
        assert (result.session / "batches" / f"{recipe}.csv").read_bytes() == evaluate(
            [BatchLog(path=log, hosts=())], 1e9
        )
