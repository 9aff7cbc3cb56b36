"""Green means judged: a session says where nothing judged the speed of a run, and a check where nothing bounded it."""

import json
from typing import Any

import pytest
import yaml

from pytest_llmbench.checks.base import all_checks
from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.plugin.verdict.speed import describe_reasons, not_judged
from tests.conftest import TEST_REFERENCES, TINY, Result, UserFolder
from tests.support.standin import RECIPE, log_at_hand
from tests.unit.judging.conftest import small

LEARNS = TINY["references"][0]
FAST = {**LEARNS, "name": "fast", "statistic": "throughput", "at_least": "1 words/s"}
HERE, ELSEWHERE = {"system": "elsewhere"}, {"gpu": "A100-SXM4-80GB", "gpus": 8}
FLOOR = {**FAST, "applies_to": HERE, "floor": True}
NOT_JUDGED = "NO SPEED WAS JUDGED for tiny: "
COMPARES = "import pytest\nfrom pytest_llmbench import Quantity\n\ndef test_it(run):\n    {}\n"


@pytest.fixture
def judge(user: UserFolder) -> UserFolder:
    log_at_hand(user)
    ini = user.path / "pytest.ini"
    ini.write_text(ini.read_text().replace("llmbench_require_verdict = no\n", ""))
    return user


def judged(user: UserFolder, *references: Any, args: tuple[str, ...] = ()) -> Result:
    user.recipe(**{**RECIPE, "references": list(references)})
    return user.run_here("--llmbench-replay", "logs", *args)


@pytest.mark.parametrize(("references", "why"), [
    ([LEARNS], "recipe tiny has no reference on speed. Write a reference"),
    ([LEARNS, {**FAST, "applies_to": ELSEWHERE}], "fast was skipped. Write a reference"),
    ([LEARNS, {**FAST, "applies_to": HERE, "floor": True}], "fast is only a floor. Write a reference"),
    ([{**FAST, "applies_to": ELSEWHERE}, {**FAST, "name": "alive", "applies_to": HERE, "floor": True}],
     "fast was skipped, alive is only a floor. "),
])  # fmt: skip
def test_nothing_judged_the_speed(judge: UserFolder, references: list[Any], why: str) -> None:
    """Every test passes or is skipped, and that is not enough at scale full; it may be said to be."""
    result = judged(judge, *references)
    assert result.returncode == 10, result.text
    assert result.text.count(NOT_JUDGED) == 1
    assert NOT_JUDGED + why in result.text
    assert "references: tiny:" in result.text
    assert "exit code 10" in result.text
    assert result.suite.get("speed_not_judged") == "tiny"
    allowed = judged(judge, *references, args=("--llmbench-require-verdict=no",))
    assert allowed.returncode == 0, allowed.text
    assert NOT_JUDGED + why in allowed.text
    assert "exit code 10" not in allowed.text


def test_a_thousand_runs_have_one_line() -> None:
    """Their recipes have no reference on speed; those that have other ones are counted."""
    made = [
        RunSpec(key=f"r{number}", recipe=small(name=f"r{number}", references=[{**LEARNS, "name": f"l{number}"}]))
        for number in range(1000)
    ]
    rows = [{"run": run.key, "verdict": "PASS", "test": run.key} for run in made]
    (line,) = describe_reasons(not_judged(made, rows, {}))
    assert line.startswith("NO SPEED WAS JUDGED for r0, r1, r2, r3, r4, r5, r6, r7 and 992 more: recipe NAME has no")
    floors = [small(name=f"r{n}", references=[{**FLOOR, "name": f"floor{n}"}]) for n in range(20)]
    made = [RunSpec(key=recipe.name, recipe=recipe) for recipe in floors]
    lines = [*describe_reasons(not_judged(made, rows, {}))]
    assert len(lines) == 6
    assert lines[0].startswith("NO SPEED WAS JUDGED for r0: floor0 is only a floor. ")
    assert lines[-1] == "NO SPEED WAS JUDGED for 15 more, for 15 other reasons"


def test_a_test_that_was_not_selected(judge: UserFolder) -> None:
    result = judged(judge, LEARNS, {**FAST, "applies_to": HERE}, args=("-k", "learns"))
    assert result.returncode == 10
    assert NOT_JUDGED + "fast was compared by no test. Select" in result.text


@pytest.mark.parametrize("at_least", ["1 words/s", "900M words/s"])
def test_a_threshold_on_speed_that_applies(judge: UserFolder, at_least: str) -> None:
    result = judged(judge, LEARNS, {**FAST, "at_least": at_least, "applies_to": HERE})
    assert result.returncode == (0 if at_least == "1 words/s" else 1), result.text
    assert "NO SPEED" not in result.text
    assert result.suite.get("speed_not_judged") is None


@pytest.mark.parametrize(("body", "code"), [
    ("assert run.step_time <= Quantity('1 h')", 0),
    ("assert Quantity('1 words/s') <= run.throughput", 0),
    ("assert run.throughput", 10),
    ("assert run.loss_drop >= Quantity('0.01 nat')", 10),
    ("assert run.warm_up_time <= Quantity('1 h')", 10),
    ("assert run.throughput >= Quantity('1 words/s')\n    pytest.skip('but')", 10),
    ("assert run.throughput >= Quantity('1 words/s')\n    assert False", 1),
    ("assert run.loss_drop >= Quantity('9 nat')", 1),
])  # fmt: skip
def test_a_comparison_in_a_test(judge: UserFolder, body: str, code: int) -> None:
    """A statistic of speed has to be compared, in a test that has a verdict."""
    judge.test(COMPARES.format(body))
    result = judged(judge, LEARNS)
    assert result.returncode == code, result.text
    assert (NOT_JUDGED in result.text) == (code == 10 or "nat" in body)


def test_with_xdist(judge: UserFolder) -> None:
    judge.recipe(**{**RECIPE, "references": [LEARNS, {**FAST, "applies_to": HERE}]})
    log_at_hand(judge, "other", references=[{**FAST, "applies_to": ELSEWHERE}])
    result = judge.run("--llmbench-replay", "logs", "-n2", code=10)
    assert "NO SPEED WAS JUDGED for other: fast was skipped." in result.text
    assert result.suite.get("speed_not_judged") == "other"


def test_a_run_that_cannot_be_judged_says_so_itself(judge: UserFolder) -> None:
    (judge.path / "logs" / "tiny" / "run.log").write_text("nothing\n")
    result = judged(judge, LEARNS)
    assert result.returncode == 1
    assert "NO SPEED" not in result.text


def test_an_ini_key_that_cannot_be_meant(judge: UserFolder) -> None:
    with (judge.path / "pytest.ini").open("a") as ini:
        ini.write("llmbench_require_verdict = perhaps\n")
    judge.test(TEST_REFERENCES)
    result = judged(judge, LEARNS)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "llmbench_require_verdict" in result.text


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
