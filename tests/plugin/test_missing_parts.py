"""What a run lacks is said before it starts, or by the rank that lacks it; and a failure's log has something in it."""

import json
import re
import sys
from pathlib import Path

import pytest

from pytest_llmbench.cluster.system import gpus_here
from tests.conftest import TEST_REFERENCES, TORCH, Result, UserFolder
from tests.support.standin import MegatronLM

FAST = """
from pytest_llmbench import Quantity

def test_fast(run):
    assert run.throughput > Quantity("9e9 words/s")
"""
CHECKS = """
import pytest

@pytest.mark.check("gemm", "all_reduce")
def test_fit(health):
    assert not health.faults, health.explanation
"""
DETAILED = ("-o", "llmbench_exit_codes=detailed", "--llmbench-gate", "off")
NO_TORCH = """
import importlib.util
import sys

class Away:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
sys.meta_path.insert(0, Away())
"""
NO_GPU_HERE = pytest.mark.skipif(gpus_here() != 0, reason="this machine has GPUs")


def log_of(result: Result) -> Path:
    return Path(result.record()["problem"]["log"])


@NO_GPU_HERE
@pytest.mark.parametrize("how", ["-n0", "-n2", "--plan"])
def test_gpus_that_are_not_there_are_refused(user: UserFolder, how: str) -> None:
    user.recipe()
    result = user.run("--cluster", "local", "--gpus-per-node", "8", "-k", "tiny", how)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "8 GPUs of this machine, which has none" in result.text
    if how == "--plan":
        return
    assert result.case.outcome == "error"
    assert "(no_gpu): the run asks for 8 GPUs of this machine, which has none" in result.case.message
    assert "--gpus-per-node 0 to train on the CPU" in result.case.message
    assert {path.name for path in (result.session / "runs" / "tiny").iterdir()} == {"record.json"}


@NO_GPU_HERE
def test_a_gpu_that_only_the_ranks_lack(user: UserFolder) -> None:
    """nvidia-smi lists two, PyTorch sees none: the rank that says so is named, with advice for this machine."""
    smi = user.path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nprintf 'NVIDIA H100\\nNVIDIA H100\\n'\n")
    smi.chmod(0o755)
    user.recipe(**TORCH)
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
    result = user.run("--system=here.yaml", "-k", "tiny", "-n0")
    assert result.case.outcome == "error"
    assert "(not_prepared)" in result.case.message
    assert "the recipe runs pytest_llmbench.workloads.cuda_on_cpu, a module of pytest-llmbench" in result.case.message
    assert "pip install --no-deps pytest-llmbench" in result.case.message
    assert not (result.session / "runs" / "tiny" / "logs" / "output.log").exists()


def test_without_torch_the_engine_says_how_to_get_it(user: UserFolder) -> None:
    """The package installs without an engine; a run that needs one is an error with the pip command."""
    (user.path / "sitecustomize.py").write_text(NO_TORCH)
    user.env["PYTHONPATH"] = str(user.path)
    user.recipe(**TORCH)
    user.test(f"{TEST_REFERENCES}\n{CHECKS}")
    result = user.run("--cluster", "local", "-n0", "-k", "tiny or gemm or all_reduce", *DETAILED, code=14)
    cases = result.cases
    for name in ("gemm-slot0", "all_reduce"):
        reason = cases[f"test_fit[{name}]"].properties["reason"]
        assert "not_measured: torch is not installed for " in reason
        assert "-m pip install 'pytest-llmbench[torch]'" in reason
    case = cases["test_reference[tiny-learns]"]
    told = json.loads((result.session / "verdict.json").read_text())
    assert (told["verdict"], told["reason"]) == (
        "not_measured", "3 tests could not be measured: software is missing",
    )  # fmt: skip
    assert (case.outcome, case.properties["verdict"]) == ("error", "ERROR")
    assert "engine torch needs PyTorch: pip install 'pytest-llmbench[torch]'" in case.message
    assert "pip install 'pytest-llmbench[torch]'" in result.text
    assert "Traceback" not in result.text
    assert result.record()["problem"]["kind"] == "engine_missing"


def test_impossible_shapes_are_errors_of_their_tests_only(user: UserFolder) -> None:
    """A batch that does not divide, and bf16 without a GPU, are said with what would do; others still run."""
    user.recipe()
    user.recipe("odd", global_batch_size=6)
    user.recipe("half", **TORCH, precision="bf16")
    user.test()
    result = user.run("--cluster", "local", "-n0", "-k", "tiny or odd or half")
    cases = result.cases
    assert {name: case.properties["verdict"] for name, case in cases.items()} == {
        "test_reference[tiny-learns]": "PASS",
        "test_reference[odd-learns]": "ERROR",
        "test_reference[half-learns]": "ERROR",
    }
    odd = cases["test_reference[odd-learns]"]
    assert odd.outcome == "error"
    assert "a global batch of 6 does not divide into micro batches of 2 on 2 ranks" in odd.message
    assert "it does on 1, 3 ranks" in odd.message
    half = cases["test_reference[half-learns]"].message
    assert "recipe half: precision bf16 needs GPUs; this run has none: pass --scale smoke" in half
    for name in ("odd", "half"):
        record = result.record(name)
        assert (record["problem"]["kind"], record["steps"]) == ("impossible", [])
        assert [entry["verdict"] for entry in record["judgements"]] == ["ERROR"]
