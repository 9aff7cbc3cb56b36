"""Real runs on several Slurm nodes, and nothing left behind."""

import json
import subprocess

import pytest

from tests.conftest import TORCH, UserFolder
from tests.slurm.conftest import Queue

SLURM = ("--cluster", "slurm")


@pytest.mark.parametrize(("nodes", "distribution"), [(4, "-n0"), (2, "-n2")])
def test_a_run_uses_the_nodes_asked_for(user: UserFolder, queue: type[Queue], nodes: int, distribution: str) -> None:
    """`--nodes N` holds N nodes, every one of them trains, the XML names them, and the job is gone afterwards."""
    user.recipe()
    user.test()
    result = user.run(*SLURM, "--nodes", str(nodes), distribution, "-k", "tiny")
    assert result.returncode == 0, result.text
    hosts = result.case.properties["hosts"].split(",")
    assert len(set(hosts)) == nodes
    record = result.record()
    assert {info["host"] for info in record["rank_info"]} == set(hosts)
    assert record["job_id"] == result.case.properties["job_id"]
    assert f"--jobid={record['job_id']}" in record["command"]
    assert (result.session / "allocation" / f"{record['job_id']}_submission.sh").is_file()
    assert json.loads((result.session / "runs" / "tiny" / "job.json").read_text())["allocation"] == record["job_id"]
    queue.wait_until_empty(result.session, 30)


def test_without_nodes_every_run_is_a_job_of_its_own(user: UserFolder, queue: type[Queue]) -> None:
    """Each run is submitted with the shape of its recipe, and its script is kept."""
    user.recipe("small")
    user.recipe("wide", nodes=2)
    user.test()
    result = user.run(*SLURM, "-k", "small or wide")
    assert result.returncode == 0, result.text
    small, wide = result.record("small"), result.record("wide")
    assert (len(small["hosts"]), len(wide["hosts"])) == (1, 2)
    assert small["job_id"] != wide["job_id"]
    script = (result.session / "runs" / "wide" / "logs" / f"{wide['job_id']}_submission.sh").read_text()
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --exclusive" in script
    queue.wait_until_empty(result.session, 30)


def test_two_sessions_at_once_do_not_disturb_each_other(user: UserFolder, queue: type[Queue]) -> None:
    """Two pytest processes hold different nodes, and each cancels its own job only."""
    user.recipe(steps=40)
    user.test()
    first = user.start(*SLURM, "--nodes", "4", "-k", "tiny", "--llmbench-run-dir", "reports/a")
    second = user.start(*SLURM, "--nodes", "4", "-k", "tiny", "--llmbench-run-dir", "reports/b")
    for process in (first, second):
        text, _ = process.communicate(timeout=500)
        assert process.returncode == 0, text
    records = [json.loads(path.read_text()) for path in (user.path / "reports").glob("*/2*/runs/tiny/record.json")]
    assert len(records) == 2
    one, other = sorted(records, key=lambda record: record["timings"]["started"])
    # If other tests have some of the nodes meanwhile, the second session gets its own after the first.
    one_after_the_other = one["timings"]["ended"] < other["timings"]["started"]
    assert one_after_the_other or set(one["hosts"]).isdisjoint(other["hosts"])
    for session in (user.path / "reports").glob("*/2*"):
        queue.wait_until_empty(session, 30)


def test_an_allocation_we_are_inside_is_used_and_left_alone(user: UserFolder, queue: type[Queue]) -> None:
    """Inside salloc, runs are steps of that job; pytest neither submits nor cancels anything."""
    user.recipe()
    user.test()
    queue.run("salloc", "--nodes=2", "--exclusive", "--no-shell", "--job-name=outer")
    job_id = queue.run("squeue", "--noheader", "--name=outer", "--format=%i").split()[0]
    try:
        user.env |= {"SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "2"}
        user.env |= {"SLURM_NTASKS": "7", "SLURM_CPU_BIND": "nonsense"}  # as a job's own environment would be
        result = user.run("-k", "tiny")
        assert result.returncode == 0, result.text
        record = result.record()
        assert (record["cluster"], record["job_id"], len(record["hosts"])) == ("slurm", job_id, 2)
        assert queue.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T").strip() == "RUNNING"
        queue.wait_until_empty(result.session, 30)

        too_many = user.run("--nodes", "4", "-k", "tiny")
        assert too_many.case.outcome == "error"
        assert f"this Slurm job {job_id} has 2 nodes" in too_many.case.message
    finally:
        queue.run("scancel", job_id)


def test_pytest_may_itself_be_a_step(user: UserFolder, queue: type[Queue]) -> None:
    """Started by srun inside a job, where new steps need --overlap and memory of their own, it works the same."""
    user.recipe()
    user.test()
    command = ["srun", "--nodes=1", "--ntasks=1", "--exclusive", f"--chdir={user.path}", *user.command("-k", "tiny")]
    done = subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert user.session is not None
    queue.wait_until_empty(user.session, 30)


def test_asking_for_gpus_that_torch_cannot_use_is_an_error(user: UserFolder) -> None:
    user.recipe(**TORCH)
    user.test()
    result = user.run(*SLURM, "--nodes", "1", "--gpus-per-node", "1", "-k", "tiny")
    assert result.case.outcome == "error"
    assert result.case.properties["verdict"] == "ERROR"
    assert "rank_died" in result.case.message
    assert "rank 0" in result.case.message
    assert "CUDA" in result.case.message or "GPU" in result.case.message
