"""Real runs on several Slurm nodes, made again until they decide, in groups, and nothing left behind."""

import json
import subprocess
from typing import Any

import pytest

from tests.conftest import TORCH, UserFolder
from tests.slurm.conftest import Queue

SLURM = ("--cluster", "slurm")


@pytest.mark.parametrize(("nodes", "distribution"), [(4, "-n0"), (2, "-n2")])
def test_a_run_uses_the_nodes_asked_for(user: UserFolder, nodes: int, distribution: str) -> None:
    """`--nodes N` holds N nodes, every one of them trains, the XML names them, and the job is gone afterwards."""
    user.recipe()
    result = user.run(*SLURM, "--nodes", str(nodes), distribution, "-k", "tiny", code=0)
    hosts = result.case.properties["hosts"].split(",")
    assert len(set(hosts)) == nodes
    record = result.record()
    assert {info["host"] for info in record["rank_info"]} == set(hosts)
    assert record["job_id"] == result.case.properties["job_id"]
    assert f"--jobid={record['job_id']}" in record["command"]
    assert (result.session / "allocation" / f"{record['job_id']}_submission.sh").is_file()
    assert json.loads((result.session / "runs" / "tiny" / "job.json").read_text())["allocation"] == record["job_id"]


def test_without_nodes_every_run_is_a_job_of_its_own(user: UserFolder) -> None:
    """Each run is submitted with the shape of its recipe, and its script is kept."""
    user.recipe("small")
    user.recipe("wide", nodes=2)
    result = user.run(*SLURM, "-k", "small or wide", code=0)
    small, wide = result.record("small"), result.record("wide")
    assert (len(small["hosts"]), len(wide["hosts"])) == (1, 2)
    assert small["job_id"] != wide["job_id"]
    script = (result.session / "runs" / "wide" / "logs" / f"{wide['job_id']}_submission.sh").read_text()
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --exclusive" in script


def test_two_sessions_at_once_do_not_disturb_each_other(user: UserFolder, queue: type[Queue]) -> None:
    """Two pytest processes hold different nodes, and each cancels its own job only."""
    user.recipe(steps=40)
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
    queue.run("salloc", "--nodes=2", "--exclusive", "--no-shell", "--job-name=outer")
    job_id = queue.run("squeue", "--noheader", "--name=outer", "--format=%i").split()[0]
    try:
        user.env |= {"SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "2"}
        user.env |= {"SLURM_NTASKS": "7", "SLURM_CPU_BIND": "nonsense"}  # as a job's own environment would be
        result = user.run("-k", "tiny", code=0)
        record = result.record()
        assert (record["cluster"], record["job_id"], len(record["hosts"])) == ("slurm", job_id, 2)
        assert queue.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T").strip() == "RUNNING"
        queue.wait_until_empty(result.session, 30)

        too_many = user.run("--nodes", "4", "-k", "tiny")
        assert too_many.case.outcome == "error"
        assert f"this Slurm job {job_id} has 2 nodes" in too_many.case.message
    finally:
        queue.run("scancel", job_id)


def test_pytest_may_itself_be_a_step(user: UserFolder) -> None:
    """Started by srun inside a job, where new steps need --overlap and memory of their own, it works the same."""
    user.recipe()
    command = ["srun", "--nodes=1", "--ntasks=1", "--exclusive", f"--chdir={user.path}", *user.command("-k", "tiny")]
    done = subprocess.run(command, env=user.environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert user.session is not None


def test_asking_for_gpus_that_torch_cannot_use_is_an_error(user: UserFolder) -> None:
    user.recipe(**TORCH)
    result = user.run(*SLURM, "--nodes", "1", "--gpus-per-node", "1", "-k", "tiny")
    assert result.case.outcome == "error"
    assert result.case.properties["verdict"] == "ERROR"
    assert "rank_died" in result.case.message
    assert "rank 0" in result.case.message
    assert "CUDA" in result.case.message or "GPU" in result.case.message


# As steps of the job that holds the nodes, and as jobs of their own.
HELD_OR_OWN = pytest.mark.parametrize("held", [True, False], ids=["held", "own"])


def speed(**bounds: str) -> dict[str, Any]:
    told = {"why": "an example", "source": "this test", "date": "2026-11-24", "applies_to": {"system": "slurm"}}
    return {"name": "speed", "statistic": "throughput", **told, **bounds}


def options(*, held: bool) -> tuple[str, ...]:
    return "--cluster", "slurm", "-n0", "-k", "tiny", *(("--nodes", "2") if held else ())


@HELD_OR_OWN
def test_further_runs_decide(user: UserFolder, *, held: bool) -> None:
    """Each is a step of the same job, or a job of its own, and all are judged together."""
    # 1,280 words/s by its log. Runs may differ by 15 %: one does not decide on half of that, and two do. A step is so
    # long that a busy machine does not double it.
    bound = speed(at_least="640 words/s", between_runs="15 %") | {"runs": 3}
    user.recipe(nodes=2, steps=60, options={"logged_s": 0.2}, references=[bound])
    result = user.run(*options(held=held), "--llmbench-inconclusive", "rerun", code=0)
    told = result.case.properties
    runs = told["runs"].split(",")
    assert runs == ["tiny", *(f"tiny-repeat{number}" for number in range(2, len(runs) + 1))]
    # Two, unless the machine is so busy that one of them was held up.
    assert len(runs) in {2, 4}
    assert (told["verdict"], float(told["alpha"]), len(told["each_run"].split(","))) == (
        "PASS", 0.005 / len(runs), len(runs),
    )  # fmt: skip
    records = [result.record(key) for key in runs]
    assert [record["look"] for record in records] == [0, 1, 2, 2][: len(runs)]
    assert all(len(set(record["hosts"])) == 2 for record in records)
    assert len({record["job_id"] for record in records}) == (1 if held else len(runs))


@HELD_OR_OWN
def test_a_decided_run_ends_early(user: UserFolder, *, held: bool) -> None:
    """The session's word reaches the ranks of both nodes, which end after the same step and give the nodes back."""
    user.recipe(nodes=2, steps=120, options={"step_s": 0.1}, references=[speed(at_least="0.01 words/s")])
    result = user.run(*options(held=held), "--llmbench-early-verdict", code=0)
    assert result.case.properties["verdict"] == "PASS"
    record = result.record()
    assert len(record["steps"]) < 120
    assert len({rank["host"] for rank in record["rank_info"]}) == 2
    assert {(rank["asked_to_end"], rank["end_steps"]) for rank in record["rank_info"]} == {(True, len(record["steps"]))}
    assert (record["early"]["look"], record["early"]["done"]) == (record["early"]["looks"][-1], len(record["steps"]))


def test_every_recipe_runs_on_every_group(user: UserFolder) -> None:
    """Groups are disjoint and busy at the same time; the node that is in none is named wherever one looks."""
    for name in ("one", "two"):
        user.recipe(name)
    user.test()
    result = user.run(*SLURM, "--nodes", "5", "--nodes-per-run", "2", "-n2", "-k", "one or two", code=0)
    records = {key: result.record(key) for key in ("one-group1", "one-group2", "two-group1", "two-group2")}
    assert set(result.cases) == {f"test_reference[{key}-learns]" for key in records}

    groups = [set(records[f"one-group{group}"]["hosts"]) for group in (1, 2)]
    assert [set(records[f"two-group{group}"]["hosts"]) for group in (1, 2)] == groups
    assert [len(group) for group in groups] == [2, 2]
    assert groups[0].isdisjoint(groups[1])
    first, second = (records[f"one-group{group}"]["timings"] for group in (1, 2))
    assert first["submitted"] < second["ended"]
    assert second["submitted"] < first["ended"]
    for group in (1, 2):  # one after the other on the same nodes
        one, two = (records[f"{name}-group{group}"]["timings"] for name in ("one", "two"))
        assert one["ended"] <= two["submitted"] or two["ended"] <= one["submitted"]

    left = result.suite["nodes_not_tested"]
    assert left
    assert left not in groups[0] | groups[1]
    assert f"NOT TESTED, too few nodes for another run: {left}" in result.text


def test_the_first_run_has_the_cluster_to_itself(user: UserFolder) -> None:
    """With `llmbench_first_run_alone` nothing else starts before it is over, and then all do.

    A recipe that cannot run at all is over before, and fills no cache.
    """
    user.recipe()
    user.recipe("odd", global_batch_size=7)
    user.test()
    nodes = ("--nodes", "3", "--nodes-per-run", "1")
    result = user.run(*SLURM, *nodes, "-o", "llmbench_first_run_alone=yes", "-n0", "-k", "tiny or odd")
    verdicts = {name: case.properties["verdict"] for name, case in result.cases.items()}
    assert verdicts == {
        f"test_reference[{name}-group{group}-learns]": verdict
        for name, verdict in (("tiny", "PASS"), ("odd", "ERROR"))
        for group in (1, 2, 3)
    }, result.text
    first, *others = (result.record(f"tiny-group{group}")["timings"] for group in (1, 2, 3))
    assert all(first["ended"] <= other["submitted"] for other in others)
    assert max(other["submitted"] for other in others) < min(other["ended"] for other in others)
    assert "nodes_not_tested" not in result.suite
    assert "NOT TESTED" not in result.text
