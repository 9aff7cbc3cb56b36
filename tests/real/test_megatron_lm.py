"""Megatron-LM itself, on CPU ranks."""

import os

import pytest

from tests.conftest import UserFolder

FRAMEWORK = "megatron_lm"
SYSTEM = os.environ.get("LLMBENCH_MEGATRON_LM_SYSTEM")


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_small_model_learns(user: UserFolder, system_file: str, distribution: str) -> None:
    result = user.run(f"--system={system_file}", "--scale", "smoke", distribution, "-k", "nlp13b", code=0)
    record = result.record("nlp13b")
    assert [step["step"] for step in record["steps"]] == [1, *range(2, 21, 2)]
    assert record["steps"][-1]["loss"] < record["steps"][0]["loss"] - 0.5
    assert record["provenance"]["git_describe"].startswith("core_v")
    assert "reported_tflops_per_gpu" not in record["metrics"]


def test_what_it_refuses_is_told_in_its_own_words(user: UserFolder, system_file: str) -> None:
    """A recipe with an argument that it does not know ends as an ERROR that quotes it."""
    user.recipe(
        "wrong", engine="megatron_lm", precision="fp32", statistic_of_record="tokens_per_s_all_lines",
        options={
            "script": "module:pytest_llmbench.workloads.cuda_on_cpu --pretend-available pretrain_gpt.py",
            "arguments": {"no-such-argument": True},
        },
    )  # fmt: skip
    result = user.run(f"--system={system_file}", "-n0", "-k", "wrong", code=1)
    problem = result.record("wrong")["problem"]
    assert problem["kind"] == "command_failed"
    assert "unrecognized arguments: --no-such-argument" in problem["message"]
