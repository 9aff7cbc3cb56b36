"""Collecting the shipped suites is quick and imports nothing heavy: it happens on login nodes, in editors, in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import UserFolder

CHECKOUT = Path(__file__).parents[3]
SUITE = CHECKOUT / "suites" / "training"
WATCHER = """
import sys

def pytest_sessionfinish():
    print("\\nIMPORTED", sorted({"torch", "submitit", "numpy", "megatron", "deepspeed"} & set(sys.modules)))
"""


def test_the_suites_collect_without_engines(tmp_path: Path) -> None:
    """All recipes with all references; neither torch nor submitit is imported for it."""
    (tmp_path / "watcher.py").write_text(WATCHER)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "watcher", "--collect-only", "-q", "-s",
         "--cluster", "local", "suites"],
        cwd=CHECKOUT, env={**env, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "IMPORTED []" in done.stdout
    names = re.findall(r"^suites/training/test_training.py::test_reference\[(.+)\]$", done.stdout, re.MULTILINE)
    assert len(names) == len(set(names)) >= 21
    assert {"opt125m-azure_200k", "opt175b-loss_falls"} <= set(names)


@pytest.mark.parametrize(("system", "bounds"), [
    ("H200", {"azure_200k", "h200", "measured_1"}),
    ("a4-highgpu-8g", {"azure_200k", "b200"}),
    ("ND96amsr_A100_v4", {"azure_200k", "a100_80gb"}),
    ("JUWELS_Booster", {"azure_200k", "a100_40gb"}),
    ("slurm", {"azure_200k", "h200", "h100", "a100_80gb", "a100_40gb", "b200"}),
    ("H200 --gpus-per-node 0", {"azure_200k", "measured_1"}),
    ("H200 --scale smoke", {"azure_200k", "measured_1"}),
])  # fmt: skip
def test_a_bound_for_other_gpus_makes_no_test(pytester: pytest.Pytester, system: str, bounds: set[str]) -> None:
    """If it says so, and if the GPUs are known; any other one is a test that is skipped with the reason."""
    done = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--collect-only", "-q", str(SUITE), "-k", "opt125m-", "--system", *system.split()
    )
    names = {name for line in done.outlines for name in re.findall(r"\[opt125m-(.+)\]$", line)}
    assert names - {"matmul_efficiency", "loss_falls"} == bounds


UNMARKED = """
import pytest

def test_unmarked(run): pass

def test_each_reference(run, reference): pass

@pytest.mark.recipe("*")
def test_every(run): pass

@pytest.mark.recipe("opt125m")
def test_named(run): pass
"""


def recipes_of(text: str, test: str) -> set[str]:
    return set(re.findall(rf"::{test}\[(\w+)", text))


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_own_recipes_come_first(user: UserFolder, distribution: str) -> None:
    """Where there are any, a test without the marker takes them alone; one with it takes what it names."""
    user.recipe()
    user.recipe("other")
    user.test(UNMARKED)
    text = user.run("--collect-only", "-q", "--cluster", "local", distribution).text
    assert recipes_of(text, "test_unmarked") == recipes_of(text, "test_each_reference") == {"tiny", "other"}
    assert {"tiny", "other", "opt125m", "opt175b"} < recipes_of(text, "test_every")
    assert recipes_of(text, "test_named") == {"opt125m"}


def test_without_own_recipes_it_is_every_one(user: UserFolder) -> None:
    user.test(UNMARKED)
    text = user.run_here("--collect-only", "-q", "--cluster", "local").text
    assert recipes_of(text, "test_unmarked") == recipes_of(text, "test_every") > {"opt125m", "opt175b"}


def test_the_shipped_suite_takes_every_one(user: UserFolder) -> None:
    user.recipe()
    options = ("--cluster", "local", f"--rootdir={user.path}", "-c", "pytest.ini")
    text = user.run("--collect-only", "-q", str(SUITE), *options).text
    assert {"tiny", "opt125m"} < recipes_of(text, "test_reference")
