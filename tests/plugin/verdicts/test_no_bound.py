"""A check that passes though nothing bounds what it measured says so, whichever check it is."""

import json
from typing import Any

import pytest
import yaml

from pytest_llmbench.checks.base import all_checks
from tests.conftest import Result, UserFolder

FIT = "def test_fit(health):\n    assert not health.faults, health.explanation\n"
REFERENCE = {
    "name": "site", "statistic": "gemm_fp32", "at_least": "0.000001 TFLOP/s/gpu", "why": "it has to work",
    "source": "this test", "date": "2026-01-01", "applies_to": {"system": "here"},
}  # fmt: skip
# These checks compare their numbers with limits of their own, without a reference.
LIMITED = {"clock", "disk", "memory"}


def system(user: UserFolder, **validation: object) -> str:
    """Write a system file of this machine, and give the option that chooses it."""
    described = {
        "name": "here", "cluster": "local", "gpus_per_node": 0, "cpu_ranks_per_node": 2, "validation": validation,
    }  # fmt: skip
    (user.path / "here.yaml").write_text(yaml.safe_dump(described))
    return "--system=here.yaml"


def record(result: Result, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.session / "checks" / name / "record.json").read_text())
    return found


def test_every_check_on_a_machine_without_references(user: UserFolder) -> None:
    user.test(FIT)
    result = user.run("-n0", system(user))
    for case in result.cases.values():
        name, properties = case.properties["check"], case.properties
        if properties["verdict"] != "PASS":
            continue
        rates = bool(properties.get("measured")) and name not in LIMITED
        assert (properties.get("bound") == "no bound") == (rates or name == "software"), name
        assert record(result, name)["report"]["unbounded"] == (properties.get("bound") == "no bound"), name
        (line,) = (line for line in result.text.splitlines() if line.startswith(f"{name} "))
        assert ("no bound" in line) == (properties.get("bound") == "no bound"), line
    assert set(all_checks()) == {case.properties["check"] for case in result.cases.values()}
    verdicts = {case.properties["check"]: case.properties["verdict"] for case in result.cases.values()}
    assert verdicts["nvlink"] == "SKIP"


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_reference_of_this_machine_is_a_bound(user: UserFolder, distribution: str) -> None:
    user.test('import pytest\n\n@pytest.mark.check("gemm")\n' + FIT)
    result = user.run(distribution, system(user, gemm={"references": [REFERENCE]}))
    assert result.case.properties["verdict"] == "PASS", result.text
    assert result.case.properties["bound"] == "bounded"
    assert "no bound" not in result.text
