"""The controller of a Slurm forgets jobs, is killed or slow: ours are known for ours, and what is done stays done."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.slurm import queue
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState
from tests.conftest import UserFolder, Watch
from tests.slurm.conftest import OwnSlurm, own_slurm, wrap
from tests.slurm.test_ill_slurm import LONG, MODES, ONCE, SLURM, TEST_ONLY
from tests.support.waiting import wait_until

# Away from the ports of the other Slurms (17000 to 18999, 23000 to 24999); each worker of xdist may bring up one.
PORTS = (11000, 13000, 15000, 19000, 21000, 25000, 27000, 29000)
PORT = PORTS[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % len(PORTS)]
ENDLESS: dict[str, Any] = {"steps": 100_000, "time_limit": "00:10:00"}
# Slow to close a job, by more than a run without an end is given.
SLOW: dict[str, Any] = {"deadlines": {"hang_floor_s": 14.0, "hang_factor": 2.0}}
SLEEP = ("--parsable", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")


@pytest.fixture
def slurm(slurm_is_up: None) -> Iterator[OwnSlurm]:
    """Two nodes whose controller nobody else needs.

    Every test has its own: a killed controller may give the id of a job out again that its nodes remember as ended, and
    Slurm then drains the node (`Duplicate jobid`).
    """
    with own_slurm("ctld", PORT, NODES="2", GPUS="1") as slurm:
        yield slurm


@pytest.fixture
def mine(user: UserFolder, slurm: OwnSlurm) -> UserFolder:
    user.env["SLURM_CONF"] = slurm.env["SLURM_CONF"]
    user.recipe(**LONG)
    return user


def jobs_of(slurm: OwnSlurm, session: Path) -> list[str]:
    lines = slurm.run("squeue", "--noheader", "--format=%i %k")
    return [line.split()[0] for line in lines if f"llmbench:{session.name}" in line]


class Forgetful:
    """A controller that was killed before it had saved what came after a moment."""

    def __init__(self, slurm: OwnSlurm) -> None:
        self._slurm = slurm
        self._state, self._saved = slurm.base / "state", slurm.base / "saved"
        shutil.rmtree(self._saved, ignore_errors=True)
        # Files come and go while it saves; what counts is that the jobs to come are not among them.
        subprocess.run(["cp", "-a", str(self._state), str(self._saved)], check=False)

    def forget(self) -> None:
        """Kill it, and start it with what it had saved then.

        The controller drains the node at once: the only sign of why it cancelled the job. So the node stays drained.
        """
        self._slurm.kill_controller()
        shutil.rmtree(self._state)
        shutil.copytree(self._saved, self._state)
        self._slurm.mend(WAIT="0")

    def submit(self, job_id: str) -> None:
        """Be somebody else, who submits jobs until one has this id."""
        for _ in range(50):
            if self._slurm.run("sbatch", "--nodes=1", "--comment=somebody else's", *SLEEP) == [job_id]:
                return
        pytest.fail(f"{job_id} is not given out again")


def untouched(slurm: OwnSlurm, job_id: str) -> None:
    (line,) = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%k")
    assert line in {"RUNNING|somebody else's", "PENDING|somebody else's"}
    steps = slurm.run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%j")
    assert not [step for step in steps if "llmbench" in step]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", ["pending", "running", "interrupted"])
def test_an_id_that_was_given_out_again_is_not_ours(
    mine: UserFolder, slurm: OwnSlurm, watch: type[Watch], mode: str, moment: str
) -> None:
    """The controller forgot our job; the job that has its id now is never used and never cancelled."""
    mine.recipe(**ENDLESS)
    controller = Forgetful(slurm)
    if moment == "pending":
        slurm.run("sbatch", "--nodes=2", *SLEEP)
    process = mine.start(*SLURM, *MODES[mode])
    ready = (lambda session: jobs_of(slurm, session)) if moment == "pending" else watch.steps
    session = mine.wait_for(lambda session: ready(session) and session)
    (ours,) = jobs_of(slurm, session)
    controller.forget()
    controller.submit(ours)
    if moment == "interrupted":
        process.send_signal(signal.SIGINT)
        mine.finish(process)
        untouched(slurm, ours)
        return
    result = mine.finish(process)
    assert result.case.outcome == "error", result.text
    untouched(slurm, ours)
    problem = result.record()["problem"]
    assert "its id belongs to another job now" in result.case.message
    assert problem["kind"] == ("allocation" if (mode, moment) == ("session", "pending") else "job_lost")


@pytest.mark.parametrize("mode", MODES)
def test_a_finished_run_needs_no_controller(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch], mode: str) -> None:
    """All ranks have reported their end, so the run is judged while the controller is away."""
    mine.recipe(**LONG, **SLOW)
    process = mine.start(*SLURM, *MODES[mode])
    session = mine.wait_for(lambda session: watch.steps(session) > 3 and session)
    slurm.kill_controller()
    mine.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists(), timeout_s=120)
    slurm.mend()
    result = mine.finish(process, code=0)
    assert result.record()["problem"] is None
    wait_until(lambda: not jobs_of(slurm, session))


@contextmanager
def endless_epilog(slurm: OwnSlurm) -> Iterator[None]:
    conf, busy, epilog = slurm.base / "etc" / "slurm.conf", slurm.base / "busy", slurm.base / "epilog"
    epilog.write_text(f"#!/bin/sh\nwhile [ -e {busy} ]; do sleep 0.2; done\n")
    epilog.chmod(0o755)
    busy.touch()
    conf.write_text(f"{conf.read_text()}\nEpilog={epilog}\n")
    slurm.run("scontrol", "reconfigure")
    try:
        yield
    finally:
        busy.unlink()


def test_a_slow_epilog_costs_no_verdict(mine: UserFolder, slurm: OwnSlurm) -> None:
    """Slurm closes the job after its epilog, long after the ranks have ended."""
    with endless_epilog(slurm):
        mine.recipe(**SLOW)
        mine.run(*SLURM, timeout_s=300, code=0)
        assert slurm.run("squeue", "--noheader", "--format=%T") == ["COMPLETING"]


@pytest.mark.parametrize("accounting", ["0", "1"])
def test_a_job_that_never_closes_has_ended(accounting: str, slurm_is_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further step can start in it, so nobody waits; sacct may show how it ended."""
    with own_slurm("ctld", PORT, NODES="1", GPUS="1", ACCOUNTING=accounting) as slurm, endless_epilog(slurm):
        monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
        (job_id,) = slurm.run("sbatch", "--comment=ours", "--job-name=llmbench-x", *SLEEP)
        ours = Slurm()
        job = ours.watch(job_id, JobIdentity(token="ours", name="llmbench-x"))
        wait_until(lambda: ours.status(job).state is JobState.RUNNING)
        slurm.run("scancel", job_id)
        wait_until(lambda: ours.status(job).word == "COMPLETING")
        assert ours.status(job).alive
        monkeypatch.setattr(queue, "CLOSING_S", 1.0)
        wait_until(lambda: not ours.status(job).alive)
        ended = ours.status(job)
        if accounting == "1":
            assert ended.state is JobState.CANCELLED
        else:
            assert ended.state is JobState.FAILED
            assert "an epilog does not end" in ended.reason


REWRITES = {"dropped": 'job_desc.comment = ""', "replaced": 'job_desc.comment = "account=physics, by the site"'}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_a_site_that_rewrites_comments(mine: UserFolder, slurm: OwnSlurm, mode: str, rewrite: str) -> None:
    """A job_submit plugin replaces comments: our jobs are known by their scripts, used and ended."""
    conf, lua = slurm.base / "etc" / "slurm.conf", slurm.base / "etc" / "job_submit.lua"
    lua.write_text(
        f"function slurm_job_submit(job_desc, parts, uid)\n  {rewrite}\n  return slurm.SUCCESS\nend\n"
        "function slurm_job_modify(job_desc, job, parts, uid)\n  return slurm.SUCCESS\nend\n"
        "return slurm.SUCCESS\n"
    )
    conf.write_text(f"{conf.read_text()}\nJobSubmitPlugins=lua\n")
    slurm.run("scontrol", "reconfigure")
    mine.recipe()
    result = mine.run(*SLURM, *MODES[mode], timeout_s=300, code=0)
    assert "does a job_submit plugin rewrite it?); it is known by its script" in result.text
    wait_until(lambda: not slurm.run("squeue", "--noheader"))


def test_a_preemption_with_a_grace_time_is_said_so(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch]) -> None:
    """Slurm ends the ranks at the beginning of the grace time: they did not die by themselves."""
    mine.recipe("tiny2")
    process = mine.start("--cluster", "slurm", "-k", "tiny", "--nodes", "1", "--partition", "low")
    mine.wait_for(lambda session: watch.steps(session) > 3)
    slurm.run("sbatch", "--partition=high", "--nodes=2", *SLEEP)
    result = mine.finish(process)
    assert result.record("tiny")["problem"]["kind"] == "job_preempted", result.text
    second = result.record("tiny2")
    assert second["problem"]["kind"] == "allocation"
    assert "PREEMPTED" in second["problem"]["message"]
    assert second["timings"]["submitted"] is None


@pytest.mark.parametrize("mode", MODES)
def test_the_node_that_failed_is_named(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch], mode: str) -> None:
    mine.recipe(**ENDLESS, nodes=2)
    process = mine.start(*SLURM, *(("--nodes", "2") if mode == "session" else ()))
    mine.wait_for(lambda session: watch.steps(session) > 1)
    os.kill(int((slurm.base / "run" / "slurmd-n2.pid").read_text()), signal.SIGKILL)  # it would be back at once
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=power supply")
    result = mine.finish(process)
    assert result.record()["problem"]["kind"] == "job_node_fail", result.text
    assert "n2 down" in result.record()["problem"]["message"]
    assert "power supply" in result.record()["problem"]["message"]


def test_waiting_runs_start_when_the_controller_is_back(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch]) -> None:
    """No run is given up for a controller that is away, or that refuses everything at first."""
    (mine.path / "conftest.py").write_text(
        "from pytest_llmbench.session import schedule\nschedule.PAUSES_S, schedule.QUIET_S = (2.0, 15.0), 0.5\n"
    )
    mine.recipe(**LONG | {"steps": 100})
    mine.recipe("tiny2")
    process = mine.start(*SLURM, "-o", "llmbench_max_runs=1")
    session = mine.wait_for(lambda session: watch.steps(session) > 3 and session)
    slurm.kill_controller()
    mine.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists(), timeout_s=120)
    time.sleep(8)
    slurm.mend()
    result = mine.finish(process, code=0)
    assert [result.record(name)["problem"] for name in ("tiny", "tiny2")] == [None, None]
    wait_until(lambda: not jobs_of(slurm, session))


IMPATIENT = """
from pytest_llmbench.cluster.slurm import queue
queue.PATIENCE_S = 8.0
"""


def test_a_job_whose_start_was_forgotten_is_made_again(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch]) -> None:
    """Slurm starts the job a second time, which is refused; with --llmbench-retries the run is repeated."""
    wrap(mine, "sbatch", TEST_ONLY, ONCE, 'exec $real --begin=now+8 "$@"')
    process = mine.start(*SLURM, "--llmbench-retries", "1")
    session = mine.wait_for(lambda session: jobs_of(slurm, session) and session)
    (ours,), saved = jobs_of(slurm, session), slurm.base / "state" / "job_state"
    wait_until(lambda: saved.exists() and f"llmbench:{session.name}".encode() in saved.read_bytes())
    controller = Forgetful(slurm)
    mine.wait_for(lambda session: watch.steps(session) > 3)
    controller.forget()
    result = mine.finish(process, code=0)
    (why,) = result.record()["superseded"]
    # slurmd refuses the second start of a job that it still ends, and our own ranks do after that.
    assert why.startswith((f"started_again: Slurm started job {ours} a second time", f"job_lost: Slurm job {ours} "))
    attempt = json.loads((session / "superseded" / "tiny.1" / "record.json").read_text())
    assert attempt["problem"]["kind"] in {"started_again", "job_lost"}
    assert result.case.properties["superseded"] == why
    wait_until(lambda: not jobs_of(slurm, session))


def test_a_job_that_slurm_forgot_is_made_again(mine: UserFolder, slurm: OwnSlurm, watch: type[Watch]) -> None:
    """The next job may be given its id. With no retry left, the run is lost."""
    (mine.path / "conftest.py").write_text(IMPATIENT)
    controller = Forgetful(slurm)
    process = mine.start(*SLURM, "--llmbench-retries", "1")
    mine.wait_for(lambda session: watch.steps(session) > 3)
    controller.forget()
    session = mine.wait_for(lambda session: (session / "superseded" / "tiny.1" / "record.json").exists() and session)
    wait_until(lambda: bool(jobs_of(slurm, session)))
    result = mine.finish(process, code=0)
    (why,) = result.record()["superseded"]
    assert why.startswith("job_lost: ")
    wait_until(lambda: not jobs_of(slurm, session))
