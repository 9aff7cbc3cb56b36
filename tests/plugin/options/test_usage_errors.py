"""What the user got wrong: said at once, in words, with exit code 4 or as an error of collection; nothing is left."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, UserFolder

pytestmark = pytest.mark.usefixtures("unigram")  # pytest runs in this process

LEARNS: Mapping[str, Any] = TINY["references"][0]

# The options, and what the message must hold: the option, the legal values.
BAD_OPTIONS = {
    "--nodes 0": ("argument --nodes", "'0' must be a whole number >= 1"),
    "--nodes x": ("argument --nodes", "'x' must be a whole number >= 1"),
    "--nodes 1.5": ("argument --nodes", "'1.5' must be a whole number >= 1"),
    "--nodes-per-run 0": ("argument --nodes-per-run", "whole number >= 1"),
    "--gpus-per-node -1": ("argument --gpus-per-node", "'-1' must be a whole number >= 0"),
    "-o llmbench_max_runs=0 --cluster local": ("ini option llmbench_max_runs: '0' must be a whole number >= 1",),
    "-o llmbench_heartbeat_timeout=14 --cluster local": (
        "ini option llmbench_heartbeat_timeout: '14' must be a whole number of seconds >= 15",
    ),
    "--llmbench-retries -1": ("argument --llmbench-retries", "'-1' must be a whole number >= 0"),
    "--llmbench-retries 1 --cluster local": ("--llmbench-retries 1 repeats runs that Slurm's nodes lost",
                                             "use --cluster slurm"),
    "--llmbench-budget 0": ("argument --llmbench-budget", "'0' must be a number of GPU-hours above 0"),
    "--llmbench-budget nan": ("argument --llmbench-budget", "'nan' must be a number of GPU-hours above 0"),
    "--cluster local --llmbench-budget 0.01": (
        "--llmbench-budget 0.01: by their time limits, the runs and checks could take 0.08333 GPU-hours, so",
    ),
    "--cluster local --llmbench-budget 9 --llmbench-inconclusive rerun": (
        "--llmbench-budget with --llmbench-inconclusive rerun: further runs are bounded only where",
    ),
    "-o llmbench_group_tolerance=3 --cluster local": (
        "ini option llmbench_group_tolerance: '3' must be a share, such as '3 %'",
    ),
    "-o llmbench_group_tolerance=0% --cluster local": ("llmbench_group_tolerance: '0%' must be a share above 0 %",),
    "--slurm account": ("argument --slurm", "'account' must be KEY=VALUE"),
    "--slurm acount=x": ("argument --slurm", "unknown option of sbatch 'acount' (did you mean 'account'?); legal: "),
    "--slurm nodes=4": ("argument --slurm", "nodes has an option of its own: write --nodes"),
    "--slurm wrap=x": ("argument --slurm", "wrap cannot be given: llmbench sets it"),
    "--llmbench-repeat 0": ("argument --llmbench-repeat", "'0' must be a whole number >= 1"),
    "--llmbench-repeat x": ("argument --llmbench-repeat", "'x' must be a whole number >= 1"),
    "--llmbench-inconclusive again": ("argument --llmbench-inconclusive", "legal: fail, rerun, warn"),
    "--llmbench-inconclusive rerun --llmbench-early-verdict --cluster local": (
        "--llmbench-inconclusive rerun with --llmbench-early-verdict",
    ),
    "--scale big": ("argument --scale", "unknown value 'big'", "legal: full, smoke"),
    "--scale smok": ("argument --scale", "did you mean 'smoke'?"),
    "--cluster k8s": ("argument --cluster", "unknown value 'k8s'", "legal: auto, debug, local, slurm"),
    "-o llmbench_allocation=never --cluster local": ("ini option llmbench_allocation: unknown value 'never'",
                                                     "legal: run, session"),
    "--time abc": ("argument --time", "'abc' is not a time limit", "hours:minutes:seconds"),
    "--system nowhere": ("unknown system 'nowhere'", "legal: ", "H200", "local", "slurm", "or give a YAML file"),
    "--system nowhere.yaml": ("nowhere.yaml", "No such file"),
    "--nodes 2 --cluster local": ("--nodes 2 with --cluster local", "use --cluster slurm"),
    "--nodes 2 --cluster debug": ("--nodes 2 with --cluster debug", "use --cluster slurm"),
    "--nodes 2 --nodes-per-run 3 --cluster slurm": ("--nodes-per-run 3 is more than --nodes 2",),
    "-o llmbench_allocation=session --cluster slurm": ("llmbench_allocation = session",
                                                       "give their number with --nodes"),
    "--cluster local --llmbench-run-dir test_user.py": ("--llmbench-run-dir", "test_user.py cannot be written",
                                                        "another --llmbench-run-dir"),
}  # fmt: skip


def refused(user: UserFolder, *options: str) -> str:
    """Run pytest in this process, expect a usage error that leaves nothing behind, and return its text."""
    user.have_tests()
    there = left_by(user)
    result = user.run_here(*options)
    text = result.text
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert left_by(user) == there
    return text


def left_by(user: UserFolder) -> set[Path]:
    """All that is in the user's folder but bytecode, which pytest leaves of what it collects."""
    return {path for path in user.path.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the machine that runs these tests do not change the options."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


# An option that pytest refuses, one of the ini file, two that contradict each other, a file: a controller refuses them.
WITH_WORKERS = (
    "--nodes 0", "-o llmbench_max_runs=0 --cluster local", "--nodes 2 --cluster local", "--system nowhere.yaml",
)  # fmt: skip


@pytest.mark.parametrize(("options", "distribution"), [
    *((options, "-n0") for options in BAD_OPTIONS),
    *((options, "-n2") for options in WITH_WORKERS),
], ids=lambda text: re.sub(r"\W+", "_", text))  # fmt: skip
def test_a_bad_option_names_itself_and_what_is_legal(user: UserFolder, options: str, distribution: str) -> None:
    """A value that cannot be meant ends the session before anything runs."""
    user.recipe()
    text = refused(user, distribution, *options.split())
    for words in BAD_OPTIONS[options]:
        assert words in text


def test_a_budget_that_is_enough_refuses_nothing(user: UserFolder) -> None:
    user.recipe()
    user.run_here("--cluster", "local", "--plan", "--llmbench-budget", "0.02", "--time", "1", code=0)


def test_a_slurm_job_is_used_as_it_is(user: UserFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert "this process is inside job 4711" in refused(user, "--cluster", "slurm", "-o", "llmbench_allocation=run")


# Further lines of the ini file, changes of the recipe, further files, and what the message must hold.
BAD_FILES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, str], tuple[str, ...]]] = {
    "ini_scale": (
        "llmbench_scale = big", {}, {}, ("ini option llmbench_scale: unknown value 'big'", "legal: full, smoke"),
    ),
    "ini_nodes": ("llmbench_nodes = 0", {}, {}, ("ini option llmbench_nodes: '0' must be a whole number",)),
    "ini_folder": ("llmbench_systems = gone", {}, {}, ("ini option llmbench_systems: ", "gone is not a folder")),
    "recipe_key": (
        "", {"stepz": 3}, {},
        ("tiny.yaml: recipe tiny: stepz: unknown key 'stepz' (did you mean 'steps'?); legal: ", "warm_up"),
    ),
    "no_unit": (
        "", {"references": [{**LEARNS, "at_least": 5}]}, {},
        ("recipe tiny: references.0.at_least: 5 has no unit", "such as '5 words/s'"),
    ),
    "other_unit": (
        "", {"references": [{**LEARNS, "statistic": "samples_per_s", "at_least": "5 words/s",
                             "applies_to": {"gpu": "H200", "gpus": 8}}]}, {},
        ("recipe tiny, reference learns: samples_per_s is in samples/s", "5 words/s is a token rate"),
    ),
    "unknown_statistic": (
        "", {"references": [{**LEARNS, "statistic": "thruput"}]}, {},
        ("reference learns: unknown statistic 'thruput' (did you mean 'throughput'?); legal: ", "mfu"),
    ),
    "unknown_engine": ("", {"engine": "pytorch"}, {}, ("recipe tiny: unknown engine 'pytorch'", "legal: ", "torch")),
    "system_key": (
        "llmbench_system = mine.yaml", {}, {"mine.yaml": "name: mine\ncluster: local\nnodez: 3\n"},
        ("mine.yaml: nodez: unknown key 'nodez'", "legal: ", "partition"),
    ),
    "system_reference": (
        "llmbench_system = mine.yaml", {}, {"mine.yaml": "name: mine\ncluster: local\nreferences: {tinny: []}\n"},
        ("system mine: references: unknown recipe 'tinny' (did you mean 'tiny'?)", "are legal, tiny"),
    ),
    "system_contradicts": (
        "llmbench_system = mine.yaml", {},
        {"mine.yaml": """name: mine
cluster: local
references:
  tiny: [{name: cap, statistic: loss_drop, at_most: -1 nat, why: w, source: s, date: 2026-01-01}]
"""},
        ("recipe tiny, with the references of the system's file: references learns and cap cannot both hold: no loss",),
    ),
}  # fmt: skip


def write_bad_files(user: UserFolder, name: str) -> tuple[str, ...]:
    """Write a user's folder with one mistake in it and return what has to be said about it."""
    ini, changes, files, words = BAD_FILES[name]
    with (user.path / "pytest.ini").open("a") as file:
        file.write(ini + "\n")
    user.recipe(**changes)
    for path, text in files.items():
        (user.path / path).write_text(text)
    user.test()
    user.test("def test_other(): pass\n", "test_other.py")
    return words


@pytest.mark.parametrize(
    ("name", "distribution"),
    [*((name, "-n0") for name in BAD_FILES), *((name, "-n2") for name in ("ini_scale", "recipe_key", "system_key"))],
)
def test_a_bad_file_is_a_usage_error_for_who_gives_options(user: UserFolder, name: str, distribution: str) -> None:
    """With an option of ours the session is about benchmarks, and it ends before anything is collected."""
    words = write_bad_files(user, name)
    text = refused(user, distribution, *([] if "system" in name else ["--system", "local"]), "--llmbench-retries", "0")
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_a_collection_error_for_who_does_not(user: UserFolder, name: str) -> None:
    words = write_bad_files(user, name)
    result = user.run_here("-n0", "--continue-on-collection-errors")
    text = result.text
    assert "1 passed, 1 error in " in text
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "ERROR collecting test_user.py" in text
    for word in words:
        assert word in text
    assert "Traceback" not in text
    assert user.session is None


MARKED = "import pytest\n\n@pytest.mark.recipe({})\ndef test_mine(run):\n    pass\n"


@pytest.mark.parametrize(("asked", "told"), [
    ("'tinny'", "unknown recipe 'tinny' (did you mean 'tiny'?); "),
    ("'tiny', repeats=0", "marker `recipe`: repeats=0 must be a whole number >= 1"),
    ("'tiny', repeats='3'", "marker `recipe`: repeats='3' must be a whole number >= 1"),
    ("'tiny', repeats=True", "marker `recipe`: repeats=True must be a whole number >= 1"),
    ("'tiny', repeat=3", "marker `recipe`: unknown argument 'repeat' (did you mean 'repeats'?)"),
])  # fmt: skip
def test_a_marker_that_cannot_be_meant_is_a_collection_error(user: UserFolder, asked: str, told: str) -> None:
    user.recipe()
    user.test(MARKED.format(asked))
    result = user.run_here("-n0", "--cluster", "local", code=pytest.ExitCode.INTERRUPTED)
    assert f"test_mine: {told}" in result.text
    assert ("are legal, tiny" in result.text) == ("'tinny'" in told)
    assert "Traceback" not in result.text
    assert user.session is None


@pytest.mark.parametrize("name", ["ini_scale", "unknown_recipe"])
def test_workers_report_a_collection_error_once(user: UserFolder, name: str) -> None:
    """Under xdist the workers find the mistake, and the session ends with it: no hang, no internal error."""
    if name == "ini_scale":
        words = write_bad_files(user, name)
    else:
        words = ("test_mine: unknown recipe 'tinny'", "`llmbench list recipes` shows them")
        user.test(MARKED.format("'tinny'"))
    result = user.run("-n2", timeout_s=120.0, code=pytest.ExitCode.TESTS_FAILED)
    assert "1 error in" in result.text
    for word in words:
        assert word in result.text
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text
    assert result.found is None
