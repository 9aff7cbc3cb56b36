"""What Slurm does to jobs, done on purpose: each is an error in Slurm's own words, and nothing stays behind."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ASLEEP, UserFolder, Watch
from tests.slurm.conftest import Queue
from tests.support.waiting import wait_until

SLURM = ("--cluster", "slurm", "-k", "tiny")
ENDLESS: dict[str, Any] = {"steps": 100_000, "options": ASLEEP, "time_limit": "00:10:00"}


@pytest.mark.parametrize(("options", "said"), [
    (("--nodes", "2", "--partition", "nowhere"), "nvalid partition"),
    (("--nodes", "99"), "ode count"),
    (("--nodes", "2", "--partition", "small", "--time", "20"), "ime limit"),
    (("--nodes", "2", "--slurm", "account=nobody"), "nvalid account"),
    (("--nodes", "2", "--slurm", "qos=luxury"), "nvalid qos"),
    (("--partition", "nowhere"), "nvalid partition"),
], ids=["partition", "nodes", "time", "account", "qos", "partition-run"])  # fmt: skip
def test_a_request_that_cannot_be_met_fails_at_once(user: UserFolder, options: tuple[str, ...], said: str) -> None:
    user.recipe(global_batch_size=4 * 99)
    user.env["PATH"] = os.environ["PATH"]
    planned = user.run(*SLURM, *options, "--plan", timeout_s=60, code=pytest.ExitCode.TESTS_FAILED)
    assert "CANNOT RUN: Slurm refuses --nodes" in planned.text
    for message in (planned.text, user.run(*SLURM, *options, timeout_s=60).error):
        assert said in message
        assert "Slurm refuses --nodes" in message
        assert "Partitions here: test*" in message
        assert ("sacctmgr show associations" in message) == (said in {"nvalid account", "nvalid qos"})


@pytest.mark.parametrize("how", [("-n0",), ("-n2", "--nodes", "1")], ids=["a job of its own", "held"])
def test_a_job_waits_no_longer_than_it_may(user: UserFolder, queue: type[Queue], how: tuple[str, ...]) -> None:
    """Another job has the only node that it may have: its run is told so, and it leaves the queue."""
    seconds = "from pytest_llmbench.cluster.slurm import full_queue\nfull_queue._MINUTE_S = 2.0\n"
    (user.path / "conftest.py").write_text(seconds)
    user.recipe()
    busy = ("--nodelist=n8", "--exclusive")
    job = queue.run("sbatch", "--parsable", *busy, "--output=/dev/null", "--wrap=sleep 600").strip()
    try:
        result = user.run(*SLURM, "--slurm", "nodelist=n8", "--llmbench-max-wait", "1", *how)
        queue.wait_until_empty(result.session, 30)
    finally:
        queue.run("scancel", job)
    message = result.error
    assert "allocation" in message
    assert "waited in the queue for longer than --llmbench-max-wait 00:01:00, and was cancelled" in message


def test_a_simulated_fault_strikes_on_a_node(user: UserFolder) -> None:
    """`--llmbench-simulate` kills the rank of the last node, which is named as if nobody had simulated it."""
    user.recipe(**ENDLESS, nodes=2)
    result = user.run(*SLURM, "--nodes", "2", "--llmbench-simulate", "lost-node@5")
    message = result.error
    assert "rank_died" in message
    last = max(Path(result.session, "runs/tiny/simulated").iterdir()).name
    assert f"rank {int(last.rpartition('-')[2])} on {result.record()['hosts'][-1]}" in message
    assert result.case.properties["simulated"] == result.record()["simulated"] == "lost-node@5"
    assert result.text.count("SIMULATED FAULT lost-node@5") == 2


@pytest.mark.parametrize("mode", ["session", "run"])
def test_a_killed_rank_is_named(user: UserFolder, watch: type[Watch], mode: str) -> None:
    user.recipe(**ENDLESS, nodes=2)
    process = user.start(*SLURM, *(("--nodes", "2") if mode == "session" else ()))
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pid = watch.pid(session, "tiny", 1)
    os.kill(pid, signal.SIGKILL)
    message = user.finish(process).error
    assert "rank_died" in message
    assert f"(pid {pid})" in message
    assert f"(pid {watch.pid(session, 'tiny', 0)})" not in message  # srun ended it, because of the other
    assert "the launcher says: srun: error: " in message  # and nothing that it says of healthy runs as well


def test_a_hung_rank_is_ended(user: UserFolder, watch: type[Watch], queue: type[Queue]) -> None:
    """A stopped rank is named, its step is killed, and the nodes come back."""
    user.recipe(**ENDLESS, deadlines={"hang_factor": 5.0, "hang_floor_s": 4.0})
    process = user.start(*SLURM, "--nodes", "2")
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pid = watch.pid(session, "tiny", 1)
    os.kill(pid, signal.SIGSTOP)
    assert "(hang): no step for " in user.finish(process).error
    queue.wait_until_empty(session, 30)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(("mode", "how"), [("session", "scancel"), ("run", "scancel"), ("run", "requeue")])
def test_a_job_ended_by_others(user: UserFolder, watch: type[Watch], queue: type[Queue], mode: str, how: str) -> None:
    """A job that somebody else cancels, or that an administrator renames and requeues, is an ERROR of the cluster."""
    user.recipe(**ENDLESS, nodes=2)
    process = user.start(*SLURM, *(("--nodes", "2") if mode == "session" else ()))
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    (job_id,) = queue.jobs_of(session)
    if how == "requeue":
        queue.run("scontrol", "update", f"jobid={job_id}", "requeue=1", "name=of-an-administrator")
        queue.run("scontrol", "requeue", job_id)
    else:
        queue.run("scancel", job_id)
    message = user.finish(process).error
    assert f"Slurm job {job_id} ended as {'REQUEUED' if how == 'requeue' else 'CANCELLED'}" in message
    assert ("it was requeued" if how == "requeue" else "cancelled from outside") in message


def test_a_job_that_reaches_its_limit_is_said_so(user: UserFolder) -> None:
    """The limit given by --time ends the run, by our clock or by Slurm's, whichever is first."""
    user.recipe(**ENDLESS)
    result = user.run(*SLURM, "--nodes", "1", "--time", "1")
    message = result.error
    assert "TIMEOUT" in message or "time limit of 00:01:00" in message
    assert "--time" in message


@pytest.mark.breaks_nodes
def test_a_dead_node_is_named(user: UserFolder, watch: type[Watch], queue: type[Queue]) -> None:
    """The error names the node that stopped answering, after Slurm has given its job up."""
    if os.geteuid() != 0:
        pytest.skip("only root can kill a node's daemon")
    user.recipe(**ENDLESS)
    process = user.start(*SLURM, "--nodes", "2", "--slurm", "nodelist=n7,n8")
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    base = Path(os.environ.get("LLMBENCH_SLURM", "/tmp/llmbench-slurm"))
    (pid_file,) = base.glob("run/slurmd*n8.pid")
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    os.kill(watch.pid(session, "tiny", 1), signal.SIGKILL)
    message = user.finish(process, timeout_s=400).error
    assert "n8" in message or "NODE_FAIL" in message
    queue.mend()  # a job stays in the queue until all its nodes have said that it is over; Slurm asks now and then
    queue.wait_until_empty(session, 120)


def test_without_accounting_runs_are_judged_all_the_same(user: UserFolder) -> None:
    """A failing sacct costs nothing, as squeue shows how a job ended."""
    shim = user.path / "bin"
    shim.mkdir()
    (shim / "sacct").write_text("#!/bin/sh\necho 'sacct: error: slurmdbd is down' >&2\nexit 1\n")
    (shim / "sacct").chmod(0o755)
    user.env["PATH"] = f"{shim}:{os.environ['PATH']}"
    user.recipe()
    user.run(*SLURM, code=0)


@pytest.mark.parametrize(("number", "mode", "distribution"), [
    (signal.SIGINT, "run", "-n0"), (signal.SIGINT, "session", "-n2"), (signal.SIGTERM, "session", "-n0"),
    (signal.SIGKILL, "run", "-n0"), (signal.SIGKILL, "session", "-n2"),
], ids=lambda value: getattr(value, "name", value))  # fmt: skip
def test_nothing_is_left_behind(
    user: UserFolder, watch: type[Watch], queue: type[Queue], number: signal.Signals, mode: str, distribution: str
) -> None:
    user.recipe(**ENDLESS, nodes=2)
    nodes = ("--nodes", "2") if mode == "session" else ()
    process = user.start(*SLURM, distribution, "-o", "llmbench_heartbeat_timeout=15", *nodes)
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    assert len(queue.jobs_of(session)) == 1
    process.send_signal(number)
    process.communicate(timeout=300)
    queue.wait_until_empty(session, 60)


def test_the_first_failure_with_x_ends_the_other_runs(user: UserFolder) -> None:
    """`-x` stops the session, and the runs that nobody waits for any more are cancelled."""
    user.recipe("bad", optimizer={"learning_rate": 1.0e39, "warmup_steps": 0})
    user.recipe("endless", **ENDLESS)
    user.test()
    result = user.run("--cluster", "slurm", "--nodes", "2", "--nodes-per-run", "1", "-x", "-k", "bad or endless")
    assert result.cases["test_reference[bad-group1-learns]"].outcome == "error"
    assert result.record("endless-group1")["problem"]["kind"] == "session_ended"
