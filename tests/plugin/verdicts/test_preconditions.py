"""Runs that cannot even be tried: an error at once, naming what is missing and what to do."""

import json

import pytest

from tests.conftest import TEST_REFERENCES, TORCH, UserFolder

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


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_without_torch_the_engine_says_how_to_get_it(user: UserFolder, distribution: str) -> None:
    """The package installs without an engine; a run that needs one is an error with the pip command."""
    (user.path / "sitecustomize.py").write_text(NO_TORCH)
    user.env["PYTHONPATH"] = str(user.path)
    user.recipe(**TORCH)
    user.test(f"{TEST_REFERENCES}\n{CHECKS}")
    result = user.run("--cluster", "local", distribution, "-k", "tiny or gemm or all_reduce", *DETAILED)
    assert result.returncode == 14, result.text
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
    assert "recipe half is bf16 on GPUs; this run has none: pass --scale smoke" in half
    for name in ("odd", "half"):
        record = result.record(name)
        assert record["problem"]["kind"] == "impossible"
        assert record["steps"] == []
        assert [entry["verdict"] for entry in record["judgements"]] == ["ERROR"]
