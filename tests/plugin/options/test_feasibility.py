"""A threshold above the hardware's peak is an error of collection, one above 65 % of it a warning."""

from typing import Any

import pytest
import yaml

from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.judging.flops import flops_per_token
from tests.conftest import TEST_REFERENCES, TINY, TORCH, UserFolder, read_junit

TWO_TESTS = f"{TEST_REFERENCES}\n\ndef test_again(run, reference):\n    raise SystemExit\n"
PLAIN = "def test_plain():\n    pass\n"
AZURE = ("--cluster", "slurm", "--system", "ND96amsr_A100_v4", "--gpus-per-node", "8", "-k", "opt175b-azure_200k")
NEEDS = ">= 200,000 words/s needs 215.3 PFLOP/s"
TAKES = "it would take at least 87 nodes at their peak, 133 at 65 % of it"


PEAK = 1e12 / flops_per_token(ModelShape(**TINY["model"]), TINY["sequence_length"])


def asks(percent: float, name: str = "fast") -> list[dict[str, Any]]:
    """A reference on that share of the peak of `toy`."""
    return [
        {
            "name": name, "statistic": "throughput", "at_least": f"{percent / 100 * PEAK} words/s", "why": "speed",
            "source": "this test", "date": "2026-01-01", "applies_to": {"system": "toy"},
        }
    ]  # fmt: skip


@pytest.fixture
def toy(user: UserFolder) -> tuple[str, ...]:
    """A system with one GPU whose peak is worth `PEAK` words per second of the tiny recipe; options that choose it."""
    gpu = {"model": "Toy", "memory_gib": 80, "peak_tflops": {"fp32": 1}, "source": "this test"}
    system = {"name": "toy", "cluster": "local", "gpus_per_node": 1, "gpu": gpu}
    (user.path / "toy.yaml").write_text(yaml.safe_dump(system))
    return "--system", "toy.yaml", "--gpus-per-node", "1"


def test_what_the_document_says_of_175b_is_impossible_on_8_nodes(user: UserFolder) -> None:
    user.test()
    result = user.run(*AZURE, "--nodes", "8", "--junitxml", "j.xml", code=pytest.ExitCode.INTERRUPTED)
    sentence = (
        f"opt175b-azure_200k: {NEEDS}, 10.8 times the published peak of 64 × A100-SXM4-80GB (19.97 PFLOP/s, bf16): "
        f"{TAKES}"
    )
    assert result.text.count(sentence) == 1
    assert "1 error during collection" in result.text
    case = read_junit(user.path / "j.xml")["test_reference[opt175b-azure_200k]"]
    assert case.outcome == "error"
    assert "collection failure" in case.message
    assert sentence in case.message
    assert result.found is None


@pytest.mark.parametrize(("options", "words"), [
    ((*AZURE, "--nodes", "128"), f"opt175b-azure_200k: {NEEDS}, 67.39 % of the published peak"),
    ((*AZURE[:-1], "opt175b-loss_falls", "--nodes", "8", "--time", "100"),
     "recipe opt175b: it is expected to take 236 min, and its time limit is 100 min"),
], ids=["a bold threshold", "a run that may not end in time"])  # fmt: skip
def test_a_session_warns_once(user: UserFolder, options: tuple[str, ...], words: str) -> None:
    """No error, although this folder's ini file turns warnings into errors; the run takes 94 minutes at the peak."""
    user.test(TWO_TESTS)
    assert user.run(*options, "--collect-only", code=0).text.count(f"FeasibilityWarning: {words}") == 1


@pytest.mark.parametrize(("nodes", "word", "code"), [("8", "CANNOT BE MET", 1), ("128", "WARNING", 0)])
def test_a_plan_says_what_it_would_take(user: UserFolder, nodes: str, word: str, code: int) -> None:
    """The whole plan is printed; it fails where a test that is left cannot be met."""
    result = user.run(*AZURE, "--nodes", nodes, "--plan", code=code)
    assert "  feasibility: at most " in result.text
    assert f"  {word}: opt175b-azure_200k: {NEEDS}" in result.text
    assert TAKES in result.text
    assert "node-hours" in result.text
    assert "FeasibilityWarning" not in result.text


def test_a_plan_of_other_tests_of_the_recipe_does_not_fail(user: UserFolder) -> None:
    """The plan still shows what the recipe's thresholds would take."""
    result = user.run(*AZURE[:-1], "opt175b-loss_falls", "--nodes", "8", "--plan", code=0)
    assert "CANNOT BE MET: opt175b-azure_200k" in result.text


def test_another_machine_smoke_and_cpus_have_no_finding(user: UserFolder) -> None:
    for options in (("--system", "H200"), ("--scale", "smoke"), ("--gpus-per-node", "0")):
        assert "A100-SXM4-80GB (" not in user.run(*AZURE, "--nodes", "8", *options, "--collect-only", code=0).text


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_other_tests_go_on_where_that_is_asked_for(user: UserFolder, toy: tuple[str, ...], distribution: str) -> None:
    """Each test of the threshold is one error, whatever the number of workers; with xdist others always go on."""
    user.recipe(**TORCH, references=asks(200))
    user.test(TWO_TESTS)
    user.test(PLAIN, "test_plain.py")
    options = ["-k", "tiny or plain", distribution, "--continue-on-collection-errors", "--junitxml", "j.xml"]
    result = user.run(*toy, *options, code=pytest.ExitCode.TESTS_FAILED)
    assert "1 passed" in result.text
    assert "2 errors" in result.text
    cases = read_junit(user.path / "j.xml")
    assert {name: case.outcome for name, case in cases.items()} == {
        "test_plain": "passed", "test_reference[tiny-fast]": "error", "test_again[tiny-fast]": "error",
    }  # fmt: skip
    assert "2 times the published peak of 1 × Toy" in cases["test_reference[tiny-fast]"].message
    assert result.found is None


def test_what_is_deselected_is_not_held_against_anybody(user: UserFolder, toy: tuple[str, ...]) -> None:
    user.recipe("possible", **TORCH, references=asks(10))
    user.recipe("impossible", **TORCH, references=asks(200))
    user.test()
    user.run(*toy, "-k", "tiny-fast or possible-fast and not impossible", "--collect-only", code=0)
    (user.path / "conftest.py").write_text(
        "import pytest\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_collection_modifyitems(items):\n"
        "    yield\n    items[:] = [item for item in items if '[possible' in item.name]\n"
    )
    user.run(*toy, "--collect-only", code=0)
    (user.path / "conftest.py").unlink()
    everything = user.run(*toy, "--collect-only", code=pytest.ExitCode.INTERRUPTED)
    assert "test_reference[possible-fast]" not in everything.text.partition("ERRORS")[2]


def test_whoever_wants_warnings_to_be_errors_gets_one(user: UserFolder, toy: tuple[str, ...]) -> None:
    """`-W error` on the command line is obeyed, as an error of collection and no crash."""
    user.recipe(**TORCH, references=asks(90))
    options = ["-k", "tiny", "--collect-only"]
    assert user.run(*toy, *options).returncode == 0
    result = user.run(*toy, *options, "-W", "error", code=pytest.ExitCode.INTERRUPTED)
    assert "90 % of the published peak" in result.text.partition("ERRORS")[2]
    assert "INTERNALERROR" not in result.text


def test_workers_warn_once(user: UserFolder, toy: tuple[str, ...]) -> None:
    """Both collect the test; the run itself cannot be tried here, for a reason that needs no GPU."""
    user.recipe(**TORCH, references=asks(90), micro_batch_size=3)
    result = user.run(*toy, "-k", "tiny", "-n2")
    assert result.text.count("FeasibilityWarning: tiny-fast: >= ") == 1
    assert "1 warning" in result.text
    assert result.case.properties["verdict"] == "ERROR"


@pytest.mark.parametrize(
    ("steps", "scale", "short"), [(8, "full", True), (21, "full", True), (22, "full", False), (8, "smoke", False)]
)
def test_a_plan_names_short_runs(user: UserFolder, toy: tuple[str, ...], steps: int, scale: str, short: bool) -> None:
    user.recipe(steps=steps, references=asks(1))
    result = user.run(*toy, "--plan", "--scale", scale)
    told = (
        f"TOO SHORT: {steps - 2} steps after the warm-up will hardly decide on fast: give the recipe at least 22 steps"
    )
    assert (told in result.text) == short, result.text
