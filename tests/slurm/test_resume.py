"""`--resume` on a real Slurm: jobs of a dead session are adopted, and none is submitted twice."""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.session.journal.earlier import describe_dead_session
from pytest_llmbench.session.journal.journal import JournalEvent, read_journal
from tests.conftest import Result, UserFolder, steps_logged
from tests.slurm.conftest import Queue, wrap
from tests.slurm.test_ill_slurm import TEST_ONLY
from tests.support.waiting import wait_until

RUNS = ("a_first", "b_second", "c_third")
OWN_JOBS = ("--cluster", "slurm", "--gpus-per-node", "0", "-o", "llmbench_max_runs=2", "-k", " or ".join(RUNS))
HELD = (*OWN_JOBS, "--nodes", "1")


@pytest.fixture
def three(user: UserFolder) -> UserFolder:
    """Three runs, of which two are long enough to be killed in their middle."""
    for name in RUNS:
        user.recipe(name, **({} if name == "a_first" else {"options": {"step_s": 0.1}, "steps": 80}))
    return user


def watch_for(user: UserFolder, seconds: float) -> None:
    """How long the watchman leaves jobs that wait to a `--resume`."""
    (user.path / "conftest.py").write_text(
        f"from pytest_llmbench.cluster.slurm import watchman\nwatchman.RESUMED_WITHIN_S = {seconds}\n"
    )


def killed(user: UserFolder, when: Callable[[Path], object], *args: str) -> Path:
    """Kill pytest at some point; the session's folder."""
    process = user.start(*args)
    session = Path(user.wait_for(lambda session: when(session) and session))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return session


def interrupted(user: UserFolder, number: signal.Signals, *args: str) -> Path:
    """End pytest in order, in the middle of the second run; the session's folder."""
    process = user.start(*args)
    session = Path(user.wait_for(lambda session: steps_logged(session, "b_second") > 1 and session))
    process.send_signal(number)
    process.communicate(timeout=120)
    return session


def events(session: Path, kind: str) -> list[JournalEvent]:
    return [event for event in read_journal(session / "journal")[0] if event.event == kind]


def jobs_made(queue: type[Queue], session: Path) -> Counter[str]:
    """How many jobs of each name a session has ever had."""
    lines = queue.run("sacct", "-n", "-X", "-P", "--starttime=now-1hour", "--format=JobName%60,Comment%80").splitlines()
    told = queue.run("squeue", "--noheader", "--states=all", "--format=%j|%k").splitlines()
    return Counter(line.split("|")[0] for line in told or lines if f"llmbench:{session.name}" in line)


def whole(result: Result, queue: type[Queue]) -> Result:
    """A session all of whose tests passed, and which left no job."""
    assert result.returncode == 0, result.text
    assert sorted(result.cases) == [f"test_reference[{name}-learns]" for name in RUNS]
    assert {case.properties["verdict"] for case in result.cases.values()} == {"PASS"}
    queue.wait_until_empty(result.session, 30)
    return result


def test_running_and_finished_jobs_are_adopted(three: UserFolder, queue: type[Queue]) -> None:
    """Each run has one job, although two processes looked after it. The watchman ends only jobs that wait."""
    watch_for(three, 1.0)
    session = killed(three, lambda session: steps_logged(session, "c_third") > 1, *OWN_JOBS)
    time.sleep(3.0)
    result = whole(three.run(*OWN_JOBS, "--resume"), queue)
    assert "of the session's earlier process: adopted" in result.text
    assert jobs_made(queue, session) == {f"llmbench-{name}": 1 for name in RUNS}
    (submitting,) = (event for event in events(session, "submitting") if event.name == "b_second")
    assert result.record("b_second")["timings"]["submitted"] == submitting.at


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_runs_cut_short_in_order_are_made_again(three: UserFolder, queue: type[Queue], number: signal.Signals) -> None:
    """Its jobs were cancelled. The new ones still train when the watchman of the first process looks for its own."""
    three.recipe("c_third", options={"step_s": 0.3}, steps=80)
    interrupted(three, number, *OWN_JOBS)
    whole(three.run(*OWN_JOBS, "--resume"), queue)


def test_nodes_held_after_an_end_in_order_outlive_its_watchman(three: UserFolder, queue: type[Queue]) -> None:
    """The resumed session still trains when the first one's watchman looks for what is left."""
    three.recipe("c_third", options={"step_s": 0.3}, steps=80)
    interrupted(three, signal.SIGINT, *HELD)
    whole(three.run(*HELD, "--resume"), queue)


@pytest.mark.parametrize("lost", ["a_first", "b_second", "all"])
def test_a_lost_run_folder_harms_no_other_run(three: UserFolder, queue: type[Queue], lost: str) -> None:
    """A cleaner of a shared file system took it away: that run is made again, and the others go on."""
    session = killed(three, lambda session: steps_logged(session, "b_second") > 1, *OWN_JOBS)
    while (folder := session / "runs" / ("" if lost == "all" else lost)).exists():
        shutil.rmtree(folder, ignore_errors=True)  # its job may write while it goes
    result = whole(three.run(*OWN_JOBS, "--resume"), queue)
    if lost == "a_first":
        assert "run b_second: job" in result.text
        assert "earlier process: adopted" in result.text
    else:
        assert "run b_second is made again: files of its job" in result.text


def test_a_job_whose_answer_died_with_its_session_is_adopted(three: UserFolder, queue: type[Queue]) -> None:
    """Slurm had taken the job, and pytest was killed before sbatch printed its id."""
    wrap(three, "sbatch", TEST_ONLY, '$real "$@" > /dev/null; touch accepted; sleep 300')
    session = killed(three, lambda _session: (three.path / "accepted").exists(), *OWN_JOBS)
    assert not events(session, "submitted")
    (three.path / "bin" / "sbatch").unlink()
    result = whole(three.run(*OWN_JOBS, "--resume"), queue)
    assert "found by its token: adopted" in result.text
    assert jobs_made(queue, session) == {f"llmbench-{name}": 1 for name in RUNS}


def test_nodes_that_were_held_are_given_back(three: UserFolder, queue: type[Queue]) -> None:
    session = killed(three, lambda session: steps_logged(session, "b_second") > 1, *HELD)
    (old,) = queue.jobs_of(session)
    assert f"jobs {old} (RUNNING) are still there; --resume={session.name}" in (
        describe_dead_session(session.parent) or ""
    )
    result = whole(three.run(*HELD, "--resume"), queue)
    assert "run a_first: finished before, and kept" in result.text
    assert Counter(event.name for event in events(session, "submitting")) == {
        "allocation": 2, "a_first": 1, "b_second": 2, "c_third": 1,
    }  # fmt: skip
    assert result.record("b_second")["job_id"] != old


def test_a_job_that_still_waits_leaves_the_queue(three: UserFolder, queue: type[Queue]) -> None:
    """Its session was killed; until the watchman ends it, the job can be adopted."""
    watch_for(three, 4.0)
    wrap(three, "sbatch", TEST_ONLY, 'exec $real --begin=now+1hour "$@"')
    session = killed(three, lambda session: len(events(session, "submitted")) == 2, *OWN_JOBS)
    assert len(queue.jobs_of(session)) == 2
    queue.wait_until_empty(session, 30)
    (three.path / "bin" / "sbatch").unlink()
    result = whole(three.run(*OWN_JOBS, "--resume"), queue)
    for name in RUNS[:2]:
        assert f"run {name} is made again: it may have ended with its session (job_cancelled)" in result.text
    assert jobs_made(queue, session) == {f"llmbench-{name}": 2 if name in RUNS[:2] else 1 for name in RUNS}


def test_no_sbatch_outlives_its_session(three: UserFolder, queue: type[Queue]) -> None:
    wrap(three, "sbatch", TEST_ONLY, "echo $$ > pid; touch asked; exec sleep 300")
    killed(three, lambda _session: (three.path / "asked").exists(), *OWN_JOBS)
    pid = int((three.path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=20)
