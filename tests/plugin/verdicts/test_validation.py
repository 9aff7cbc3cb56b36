"""Checks of this machine as tests: their verdicts, their records, and what the gate does with them."""

import json

import pytest
import yaml

from tests.conftest import UserFolder

CHECKS = """
import pytest

@pytest.mark.check("limits", "memory")
def test_fit(health):
    assert not health.faults, health.explanation
"""
TRAINING = """
@__import__("pytest").mark.recipe("tiny")
def test_trains(run):
    assert run.record.hosts
"""


def system(user: UserFolder, **validation: object) -> tuple[str, ...]:
    """Write a system file of this machine, and give the options that choose it."""
    described = {"name": "here", "cluster": "local", "gpus_per_node": 0, "validation": validation}
    (user.path / "here.yaml").write_text(yaml.safe_dump(described))
    return ("--system=here.yaml",)


BAD_LIMIT = {"limits": {"options": {"nofile": 2**40}}}


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_each_check_of_each_node_has_a_verdict(user: UserFolder, distribution: str) -> None:
    """One node that passes one check and fails another: the failure says what, where and what to do.

    The gate is on where checks and runs are in one session: the run is skipped, and the check and the node are named.
    """
    user.test(CHECKS + TRAINING)
    user.recipe()
    result = user.run(distribution, *system(user, **BAD_LIMIT), code=pytest.ExitCode.TESTS_FAILED)
    cases = result.cases
    limits, memory = cases["test_fit[limits-slot0]"], cases["test_fit[memory-slot0]"]
    assert (limits.outcome, limits.properties["verdict"]) == ("failure", "FAIL")
    assert (memory.outcome, memory.properties["verdict"]) == ("passed", "PASS")
    assert limits.properties["severity"] == "CONFIGURE"
    assert limits.properties["host"] in limits.message
    assert limits.properties["action"]
    assert "1099511627776" in limits.message
    record = json.loads((result.session / "checks" / "limits" / "record.json").read_text())
    assert record["hosts"] == [limits.properties["host"]]
    assert [(told["verdict"], told["test"]) for told in record["judgements"]] == [
        ("FAIL", "test_user.py::test_fit[limits-slot0]")
    ]
    assert "llmbench health" in result.text
    trains = cases["test_trains[tiny]"]
    assert (trains.outcome, trains.properties["verdict"]) == ("skipped", "SKIP")
    assert "limits: " in trains.message
    assert limits.properties["host"] in trains.message
    assert not (result.session / "runs" / "tiny" / "task.json").exists()


def test_the_gate_can_be_left_open(user: UserFolder) -> None:
    """`--llmbench-gate off`: a check fails, the run is made all the same; what the system leaves out is skipped."""
    user.test(CHECKS + TRAINING)
    user.recipe()
    validation = {**BAD_LIMIT, "memory": {"skip": "nobody asked"}}
    result = user.run("-n0", "--llmbench-gate", "off", *system(user, **validation))
    assert result.cases["test_fit[limits-slot0]"].outcome == "failure"
    assert result.cases["test_trains[tiny]"].outcome == "passed"
    memory = result.cases["test_fit[memory-slot0]"]
    assert memory.outcome == "skipped"
    assert "nobody asked" in memory.message


@pytest.mark.parametrize(("validation", "said"), [
    ({"limitz": {}}, "unknown check 'limitz'"),
    ({"limits": {"options": {"nofiles": 1}}}, "nofiles"),
    (
        {"memory": {"references": [{"name": "x", "statistic": "speed", "at_least": "1 %", "why": "w",
                                    "source": "s", "date": "2026-01-01"}]}},
        "unknown statistic 'speed'",
    ),
])  # fmt: skip
def test_a_system_file_that_names_nothing_real_is_refused(
    user: UserFolder, validation: dict[str, object], said: str
) -> None:
    user.test(CHECKS)
    result = user.run_here(*system(user, **validation))
    assert result.returncode != 0
    assert said in result.text
    assert "Traceback" not in result.text


def test_unfit_nodes_go_on_the_list_and_stay_away(user: UserFolder) -> None:
    """`--quarantine FILE`: written by the session that finds one unfit, and refused by the next."""
    user.test(CHECKS + TRAINING)
    user.recipe()
    first = user.run("-n0", *system(user, **BAD_LIMIT), "--quarantine", "bad.txt")
    host = first.cases["test_fit[limits-slot0]"].properties["host"]
    lines = [line for line in (user.path / "bad.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 1
    assert lines[0].startswith(f"{host}  # ")
    assert first.session.name in lines[0]
    second = user.run("-n0", *system(user), "--quarantine", "bad.txt", "-k", "trains")
    assert second.cases["test_trains[tiny]"].outcome == "error"
    assert f"in quarantine: {host}" in second.cases["test_trains[tiny]"].message


def test_a_node_is_checked_in_this_process_too(user: UserFolder) -> None:
    """`--cluster debug`: the same check, where a debugger can stop in it."""
    user.test(CHECKS)
    result = user.run("-n0", "--cluster", "debug", "--gpus-per-node", "0")
    assert result.cases["test_fit[limits-slot0]"].outcome == "passed", result.text


def test_checks_of_logs_are_skipped(user: UserFolder) -> None:
    (user.path / "logs").mkdir()
    user.test(CHECKS)
    result = user.run("-n0", "--replay", "logs")
    assert result.returncode != 0 or all(case.outcome == "skipped" for case in result.cases.values())


def test_without_nodes_on_slurm_nothing_is_submitted(user: UserFolder) -> None:
    """Checks need nodes that are held: the message says which option is missing."""
    user.test(CHECKS)
    result = user.run_here("--cluster", "slurm", "--gpus-per-node", "0", code=pytest.ExitCode.USAGE_ERROR)
    assert "--nodes" in result.text


@pytest.mark.parametrize(("expression", "checks", "trains"), [
    ("tiny", 2, True), ("not tiny", 2, False), ("tiny and not other", 2, True), ("limits", 1, False),
    ("tiny or limits", 1, True), ("tiny and not fit", 0, True),
])  # fmt: skip
def test_an_expression_without_a_check_leaves_all(user: UserFolder, expression: str, checks: int, trains: bool) -> None:
    """`-k opt175b` beside a validation suite is about the training; one that names a check means what it says."""
    user.test(CHECKS + TRAINING)
    user.recipe()
    text = user.run_here("--collect-only", "-q", "--cluster", "local", "--gpus-per-node", "0", "-k", expression).text
    assert text.count("test_user.py::test_fit[") == checks
    assert ("test_user.py::test_trains[tiny]" in text) == trains


def test_a_node_with_faults_does_not_pass_by_a_test_that_leaves_them_alone(user: UserFolder) -> None:
    """A test may let single faults pass, and has to go through them for that."""
    bodies = {
        "nothing": "pass",
        "object": "assert health",
        "no_assert": "not health.faults",
        "truth": "assert (not health.faults) in {True, False}",
        "printed": "print(health.faults, health.explanation, health.properties())",
        "each": "assert not [fault for fault in health.faults if fault.kind != 'limit']",
    }
    tests = [f"@mark\ndef test_{name}(health):\n    {body}\n" for name, body in bodies.items()]
    user.test("import pytest\n\nmark = pytest.mark.check('limits', 'memory')\n\n" + "\n".join(tests))
    result = user.run("-n0", *system(user, **BAD_LIMIT), code=pytest.ExitCode.TESTS_FAILED)
    ends = {
        name: [result.cases[f"test_{name}[{check}-slot0]"].properties["verdict"] for check in ("limits", "memory")]
        for name in bodies
    }
    assert ends == {name: ["PASS" if name == "each" else "ERROR", "PASS"] for name in bodies}
    assert "has 1 fault, and the test passed" in result.cases["test_object[limits-slot0]"].message
