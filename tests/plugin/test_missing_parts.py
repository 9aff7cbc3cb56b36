"""What a run lacks is said before it starts, or by the rank that lacks it; and a failure's log has something in it."""

import re
import sys
from pathlib import Path

import pytest

from pytest_llmbench.cluster.system import gpus_here
from tests.conftest import TORCH, Result, UserFolder
from tests.support.standin import MegatronLM

FAST = """
from pytest_llmbench import Quantity

def test_fast(run):
    assert run.throughput > Quantity("9e9 words/s")
"""
NO_GPU_HERE = pytest.mark.skipif(gpus_here() != 0, reason="this machine has GPUs")


def log_of(result: Result) -> Path:
    return Path(result.record()["problem"]["log"])


@NO_GPU_HERE
@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_gpus_that_are_not_there_are_refused(user: UserFolder, distribution: str) -> None:
    user.recipe()
    user.test()
    result = user.run("--cluster", "local", "--gpus-per-node", "8", "-k", "tiny", distribution)
    assert result.case.outcome == "error"
    assert "(no_gpu): the run asks for 8 GPUs of this machine, which has none" in result.case.message
    assert "--gpus-per-node 0 to train on the CPU" in result.case.message
    assert {path.name for path in (result.session / "runs" / "tiny").iterdir()} == {"record.json"}


@NO_GPU_HERE
def test_the_plan_refuses_them_as_well(user: UserFolder) -> None:
    user.recipe()
    user.test()
    result = user.run("--cluster", "local", "--gpus-per-node", "8", "-k", "tiny", "--plan")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "8 GPUs of this machine, which has none" in result.text


@NO_GPU_HERE
def test_a_gpu_that_only_the_ranks_lack(user: UserFolder) -> None:
    """nvidia-smi lists two, PyTorch sees none: the rank that says so is named, with advice for this machine."""
    smi = user.path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nprintf 'NVIDIA H100\\nNVIDIA H100\\n'\n")
    smi.chmod(0o755)
    user.recipe(**TORCH)
    user.test()
    user.env = {"PATH": f"{smi.parent}:/usr/bin:/bin"}
    result = user.run("--cluster", "local", "--gpus-per-node", "2", "-k", "tiny", "-n0")
    assert result.case.outcome == "error"
    assert "(rank_died): rank 0 failed before it could introduce itself: RunError: rank 0 of this node needs GPU 0" in (
        result.case.message
    )
    assert "ask Slurm" not in result.case.message
    assert log_of(result).stat().st_size > 0


def test_a_missed_threshold_names_a_log_with_something_in_it(user: UserFolder) -> None:
    user.recipe()
    user.test(FAST)
    result = user.run("--cluster", "local", "-k", "tiny", "-n0")
    assert result.case.outcome == "failure"
    logs = {user.path / told for told in re.findall(r"^E? +log: (.*)$", result.case.message, re.MULTILINE)}
    assert [log.name for log in logs if log.is_file() and log.stat().st_size] == ["rank-00000.jsonl"]


def test_a_framework_without_our_package_is_told_before_it_runs(user: UserFolder) -> None:
    """A recipe that runs a module of ours needs it in the framework's own environment."""
    framework = MegatronLM(user)
    alone = user.path / "python"
    alone.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    alone.chmod(0o755)
    framework.install(python=str(alone))
    framework.recipe(options={"script": "module:pytest_llmbench.workloads.cuda_on_cpu pretrain_gpt.py"})
    user.test()
    result = user.run("--system=here.yaml", "-k", "tiny", "-n0")
    assert result.case.outcome == "error"
    assert "(not_prepared)" in result.case.message
    assert "the recipe runs pytest_llmbench.workloads.cuda_on_cpu, a module of pytest-llmbench" in result.case.message
    assert "pip install --no-deps pytest-llmbench" in result.case.message
    assert not (result.session / "runs" / "tiny" / "logs" / "output.log").exists()
