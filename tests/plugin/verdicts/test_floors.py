"""The threshold of a weaker GPU on a better one: it can fail, and it judges no speed."""

from typing import Any

import pytest

from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Judgement, RunRecord, Verdict
from pytest_llmbench.evidence.recheck import judge_test_again
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.plugin.verdict.speed import find_judged_speeds
from pytest_llmbench.reporting.verdict import NOTHING_JUDGED
from tests.conftest import UserFolder
from tests.plugin.conftest import RECORDED, one_h200
from tests.support.shipped import shipped_recipes

A100 = {"gpu": "A100-SXM4-80GB", "gpus": 1}
TEST = """
import pytest

@pytest.mark.recipe("opt125m")
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference
"""


@pytest.mark.parametrize(("bounds", "verdict", "code"), [
    ({"at_least": "200K words/s", "at_most": "300K words/s"}, "PASS", NOTHING_JUDGED),
    ({"at_least": "900K words/s"}, "FAIL", pytest.ExitCode.TESTS_FAILED),
])  # fmt: skip
def test_a_floor_can_fail_and_judges_no_speed(recorded: UserFolder, bounds: Any, verdict: str, code: int) -> None:
    """The recorded run made 456,479 words/s on an H200, more than an A100 can, which is no fault of an H200."""
    system = one_h200(recorded, a100={**bounds, "applies_to": A100})
    recorded.test(TEST)
    judged = ("--replay", "as-recorded:recorded", system, "-k", "opt125m-a100]", "--llmbench-require-verdict", "yes")
    result = recorded.run(*judged, code=code)
    told = result.cases["test_reference[opt125m-a100]"].properties
    at_least = bounds["at_least"].replace("K", "000")
    assert (told["verdict"], told["threshold"], told["floor"]) == (verdict, f">= {at_least}", "1 × A100-SXM4-80GB")
    assert "speed_judged" not in told
    judgement = next(each for each in result.record("opt125m")["judgements"] if each["reference"] == "a100")
    assert (judgement["floor"], judgement["at_most"]) == ("1 × A100-SXM4-80GB", None)
    assert "000 words/s (floor)" in result.text
    assert "matmul_efficiency and a100 are only floors" in result.text


@pytest.mark.parametrize(("rate", "met"), [(3_423_271, True), (150_000, False)])
def test_eight_h200_are_judged_by_the_number_of_eight_a100(rate: float, *, met: bool) -> None:
    """3,423,271 words/s were measured on a node of eight (docs/measurements)."""
    one = RunRecord.read(RECORDED / "runs" / "opt125m" / "record.json")
    throughput = one.metrics["throughput"]
    numbers = {name: getattr(throughput, name) for name in ("value", "low", "high", "amount")}
    scale = {name: number * rate / throughput.value for name, number in numbers.items() if number is not None}
    recipe = shipped_recipes()["opt125m"]
    metrics = {"throughput": throughput.model_copy(update=scale)}
    run = Run(one.model_copy(update={"gpus": 8, "ranks": 8, "recipe": recipe, "metrics": metrics}))
    here = {reference.name: run.reference(reference) for reference in recipe.references}
    azure = here["azure_200k"]
    assert isinstance(azure, Reference)
    assert (azure.floor_for, azure.threshold) == ("8 × A100-SXM4-80GB, 1 node", ">= 200000 words/s")
    assert (run.measured("throughput") in azure) is met
    run.applied = azure
    assert find_judged_speeds(run) == []
    verdict = Verdict.PASS if met else Verdict.FAIL
    kept = Judgement(
        test="t", verdict=verdict, statistic="throughput", measured=f"{rate!r} words/s", value=rate, unit="words/s",
        threshold=azure.threshold, at_least=200_000.0, reference=azure.name, floor=azure.floor_for,
    )  # fmt: skip
    again = {name: judge_test_again(kept.model_copy(update={"verdict": name}), [run.record]) for name in Verdict}
    assert (again[verdict].difference, again[verdict].taken) == ("", "")
    assert again[Verdict.SKIP].taken  # it is judged, so a SKIP cannot be verified
    assert {name for name, found in here.items() if isinstance(found, Reference)} >= {"azure_200k", "h200"}
