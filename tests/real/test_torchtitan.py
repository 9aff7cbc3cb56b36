"""torchtitan itself, on two CPU ranks with gloo."""

import os

from tests.conftest import UserFolder

FRAMEWORK = "torchtitan"
SYSTEM = os.environ.get("LLMBENCH_TORCHTITAN_SYSTEM")


def test_a_small_model_learns(user: UserFolder, system_file: str) -> None:
    user.test()
    result = user.run(
        f"--system={system_file}", "--scale", "smoke", "--gpus-per-node", "0", "-n0", "-k", "titan_llama31_8b-loss"
    )
    assert result.case.properties["verdict"] == "PASS", result.text
    record = result.record("titan_llama31_8b")
    assert [(step["step"], step["tokens"]) for step in record["steps"]] == [(number, 256) for number in range(1, 21)]
    assert record["metrics"]["median_tps"]["value"] > 0.0
    assert record["metrics"]["loss_drop"]["value"] > 1.0
    claimed = {claim["name"] for claim in record["claims"]} if "claims" in record else set()
    assert claimed or "settings printed" in result.text
    assert record["device"] == "cpu"
