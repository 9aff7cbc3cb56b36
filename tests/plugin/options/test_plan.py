"""`--plan`: what would run, its scripts and its node-hours; nothing is submitted, nothing is written."""

import os
import re
from pathlib import Path

import pytest

from tests.conftest import PYTEST, UserFolder
from tests.support.warm import asking as warm_pytest

CHECKOUT = Path(__file__).parents[3]
NO_SPEED = ("--llmbench-require-verdict", "no")


def plan(folder: Path, *options: str, path: str) -> tuple[int, str]:
    """Run the checkout's suites with `--plan`, started in `folder`, without Slurm on PATH."""
    command = [*PYTEST, "-p", "no:benchmark", "--plan", *options, str(CHECKOUT / "suites" / "training")]
    done = warm_pytest.run(command, cwd=folder, environment={"PATH": path, "HOME": str(folder)}, timeout_s=60)
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_plan_shows_jobs_scripts_and_node_hours(tmp_path: Path, distribution: str) -> None:
    """The largest recipe on eight nodes held for the session, seen from a laptop without Slurm."""
    # Its threshold cannot be met on 8 nodes, which is for test_feasibility.py; the plan of its other tests is whole.
    chosen = ["-k", "opt175b-loss_falls", distribution, *NO_SPEED]
    options = ["--cluster", "slurm", "--system", "ND96amsr_A100_v4", "--nodes", "8", *chosen]
    code, text = plan(tmp_path, *options, path=str(tmp_path))
    assert code == 0, text
    assert "system ND96amsr_A100_v4, cluster slurm, 1 run, nothing is submitted" in text
    assert "opt175b: engine torch, 8 nodes × 8 GPUs, 64 ranks, 50 steps of 2097152 tokens, at most 240 min" in text
    assert "srun --jobid=JOB --overlap" in text
    assert "--nodes=8 --nodelist=NODE1,NODE2,NODE3,NODE4,NODE5,NODE6,NODE7,NODE8 --ntasks=64 " in text
    assert "# sbatch script of llmbench-hold" in text
    assert "#SBATCH --nodes=8" in text
    assert "time: 94.2 min at the published peak; 236 min, or 251 GPU-hours, are expected at 40 % of it" in text
    assert "memory of each GPU: 40.7 GiB of weights, gradients and optimizer, about 67 GiB with" in text
    assert "  judged: loss_falls\n  compared by no test: azure_200k; matmul_efficiency\n" in text
    assert "1 job holds the nodes, each run is a step in it: at most 261.3 GPU-hours, 32.67 node-hours" in text
    assert "all trainings together are expected to take 251 GPU-hours" in text
    assert "NOT CHECKED: Slurm was not asked, as there is no sbatch on PATH" in text
    assert "workers" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_today_shows_what_it_takes_and_what_would_judge_it(tmp_path: Path) -> None:
    """Llama 3.1 8B on 64 H100: time, memory, and the published rate with its source."""
    options = ["--cluster", "slurm", "--system", "ND96isr_H100_v5", "--nodes", "8", "-k", "llama31_8b-torchtitan"]
    code, text = plan(tmp_path, *options, path=str(tmp_path))
    assert code == 0, text
    assert "feasibility: at most 1,093,364 words/s at the published peak of 64 × H100 80GB HBM3" in text
    assert "4.8 min, or 5.11 GPU-hours, are expected at 40 % of it" in text
    assert "memory of each GPU: 1.9 GiB of weights, gradients and optimizer, about 50 GiB with" in text
    assert "recomputed: none, 1 sequence in each micro batch\n" in text
    assert "  judged: torchtitan_h100\n" in text
    assert "  source of torchtitan_h100: https://github.com/pytorch/torchtitan (b5bcd76c, 2026-08-21, " in text


def test_a_job_per_run_has_a_script_each_and_its_verdicts(tmp_path: Path) -> None:
    """No reference of 175B is for H200: a session that may be green would have no verdict on its speed."""
    options = ["--cluster", "slurm", "--system", "H200", "-k", "opt175b or opt125m", "--time", "30"]
    code, text = plan(tmp_path, *options, path=str(tmp_path))
    assert code == pytest.ExitCode.TESTS_FAILED, text
    azure = "azure_200k (a floor, set for 8 × A100-SXM4-80GB, 1 node)"
    assert f"  judged: {azure}; h200; matmul_efficiency (a floor); loss_falls\n" in text
    assert "  not for this machine (8 × H200, 1 node, system H200): h100 (for H100 80GB HBM3, 1 node); " in text
    assert "; measured_1 (for 1 × H200, 1 node)\n" in text
    assert text.count("NO SPEED WILL BE JUDGED") == 1
    assert "NO SPEED WILL BE JUDGED: write a reference for this machine: in its system file, references: opt1" in text
    assert "# sbatch script of llmbench-opt125m" in text
    assert "# sbatch script of llmbench-opt175b" in text
    assert text.count("#SBATCH --time=30") == 2
    assert "2 jobs, one per run: at most 516 GPU-hours, 64.5 node-hours" in text


def test_what_cannot_run_is_said_and_fails(tmp_path: Path) -> None:
    """One recipe that fits and one that does not: both are shown, and the exit code is 1."""
    options = ["--cluster", "local", "--gpus-per-node", "0", "-k", "opt125m"]
    code, text = plan(tmp_path, *options, path=str(tmp_path))
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert "CANNOT RUN: recipe opt125m: precision bf16 needs GPUs; this run has none: pass --scale smoke" in text
    assert "#SBATCH" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_is_too_large_fails_a_plan_and_a_session(user: UserFolder) -> None:
    """The README's command for 8 nodes, on one."""
    options = ["--system", "p5.48xlarge", "--gpus-per-node", "8", "-k", "opt175b-loss_falls"]
    planned = user.run("--plan", "--cluster", "slurm", "--nodes", "1", *options, code=pytest.ExitCode.TESTS_FAILED)
    assert "CANNOT RUN: recipe opt175b: weights, gradients and optimizer alone take 325 GiB of each GPU" in planned.text
    assert "it fits on 8 nodes (--nodes 8)" in planned.text


SBATCH = """#!/bin/sh
test "$1" = --test-only || exit 9
while read -r line; do
  case "$line" in *nodes=64 | *partition=nope) echo "sbatch: error: $line is too much" >&2; exit 1 ;; esac
done < "$2"
"""


@pytest.mark.parametrize(("options", "words", "code"), [
    (["--nodes", "64"], "CANNOT RUN: Slurm refuses --nodes 64 --time ", 1),
    (["--nodes=8", "--partition=nope"], "--partition nope: #SBATCH --partition=nope is too much. Partitions", 1),
    (["--nodes", "8"], "Slurm could start that (sbatch --test-only)", 0),
])  # fmt: skip
def test_slurm_is_asked_where_it_is(tmp_path: Path, options: list[str], words: str, code: int) -> None:
    for name, script in {"sbatch": SBATCH, "sinfo": "#!/bin/sh\nprintf '\\036debug\\0378\\0371:00:00\\n'\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    chosen = ["--cluster", "slurm", "--system", "H200", "-k", "opt175b-loss_falls", *NO_SPEED, *options]
    found, text = plan(tmp_path, *chosen, path=f"{tmp_path}:{os.environ['PATH']}")
    assert words in text
    assert found == code, text
    assert {path.name for path in tmp_path.iterdir()} == {"sbatch", "sinfo"}


def test_errors_of_collection_come_first(user: UserFolder) -> None:
    """A plan of half the tests would be wrong."""
    user.recipe()
    user.test()
    user.test("import nothing_of_that_name\n", "test_broken.py")
    result = user.run("--plan", "--cluster", "local", "-k", "tiny", code=pytest.ExitCode.INTERRUPTED)
    assert "nothing is submitted" not in result.text
    assert result.found is None


def test_a_plan_without_benchmarks_is_empty(user: UserFolder) -> None:
    user.test("def test_other(): raise SystemExit\n")
    result = user.run("--plan", "--cluster", "local")
    assert result.returncode in {0, pytest.ExitCode.NO_TESTS_COLLECTED}, result.text
    assert "0 runs, nothing is submitted" in result.text


def test_a_plan_names_what_no_group_takes(user: UserFolder) -> None:
    """Eight nodes make two groups of three; the other two are said to be left out, before anything is submitted."""
    user.recipe(global_batch_size=12)
    result = user.run("--cluster", "slurm", "--nodes", "8", "--nodes-per-run", "3", "--plan", "-k", "tiny", code=0)
    groups = [line.split(":")[0] for line in result.text.splitlines() if line.startswith("tiny-group")]
    assert groups == ["tiny-group1", "tiny-group2"]
    assert "NOT TESTED: 2 of 8 nodes, too few for a group of 3" in result.text


def test_checks_are_in_the_plan(tmp_path: Path) -> None:
    """Both suites: what is checked first, and a job that outlives a node that is found dead."""
    suites = [str(CHECKOUT / "suites" / "validation"), "-k", "opt175b-loss_falls", *NO_SPEED]
    options = ["--cluster", "slurm", "--system", "ND96amsr_A100_v4", "--nodes", "8", *suites]
    code, text = plan(tmp_path, *options, path=str(tmp_path))
    assert code == 0, text
    assert re.search(r"cluster slurm, \d+ checks, then 1 run, nothing is submitted", text)
    assert "check dcgm: " in text
    assert "#SBATCH --no-kill" in text
