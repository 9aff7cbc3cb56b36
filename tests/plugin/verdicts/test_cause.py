"""A missed speed ends with the line that names its cause: in the message, the table, the XML and the record."""

import socket
from typing import Any

import pytest

from tests.conftest import Result, UserFolder

SYSTEM = "{name: here, cluster: local, gpus_per_node: 0, cpu_ranks_per_node: 2}"
TEST = """
import pytest
from pytest_llmbench import Quantity

@pytest.mark.recipe("tiny")
def test_speed(run):
    assert run.step_time <= Quantity("1 ms")

@pytest.mark.recipe("tiny")
def test_not_too_fast(run):
    assert run.step_time >= Quantity("1 h")

@pytest.mark.recipe("tiny")
def test_reached(run):
    assert run.step_time <= Quantity("1 h")
"""


def judge(user: UserFolder, distribution: str, **options: Any) -> Result:
    user.recipe(steps=32, options={"step_s": 0.02, **options})
    (user.path / "here.yaml").write_text(SYSTEM)
    user.test(TEST)
    return user.run("--cluster", "local", "--system", "here.yaml", "--llmbench-require-verdict", "no", distribution)


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_the_rank_that_the_others_wait_for_is_named(user: UserFolder, distribution: str) -> None:
    result = judge(user, distribution, late_s=0.2)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.text
    cases = {name.partition("[")[0]: case for name, case in result.cases.items()}
    told = cases["test_speed"].properties["cause"]
    assert told.startswith(f"straggler: rank 1 on {socket.gethostname()} takes 2")
    assert told.endswith("and the threshold needs 1 ms")
    assert f"cause: {told}" in cases["test_speed"].message
    assert cases["test_speed"].properties["verdict"] == "FAIL"
    assert "cause: straggler: rank 1" in result.text
    for other in ("test_not_too_fast", "test_reached"):
        assert "cause" not in cases[other].properties
    record = result.record("tiny")
    causes = {each["test"].rpartition("::")[2].partition("[")[0]: each["cause"] for each in record["judgements"]}
    assert causes == {"test_speed": told, "test_not_too_fast": None, "test_reached": None}
    ranks = record["times"]["ranks"]
    assert ranks[1]["last"] > 0.9
    assert ranks[1]["phases"]["forward"] > 10 * ranks[1]["phases"]["sync"]
