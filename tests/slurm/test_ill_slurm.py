"""A Slurm that is ill: commands that time out, hang or print garbage, launches that fail, jobs that are suspended.

Where a real Slurm cannot be made to, a program in front of the real command plays the fault, and else calls it.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.slurm.commands import clean_environment
from tests.conftest import UserFolder, Watch
from tests.slurm.conftest import Queue, wrap

SLURM = ("--cluster", "slurm", "-k", "tiny")
MODES = {"session": ("--nodes", "1"), "run": ()}
# Until sbatch is cut off, until a job is searched for in vain, and between launches: no test waits as long as people.
IMPATIENT = """
from pytest_llmbench.cluster import executors
from pytest_llmbench.cluster.slurm import queries
from pytest_llmbench.session import schedule
queries.TIMEOUT_S, executors._SEARCH_S, executors._SEARCH_PERIOD_S, schedule.PAUSES_S = 6.0, 3.0, 0.5, (0.5, 1.0)
"""
LONG: dict[str, Any] = {"steps": 300, "options": {"step_s": 0.03}, "time_limit": "00:10:00"}


TEST_ONLY = 'case " $* " in *" --test-only "*) exec $real "$@";; esac'
ONCE = 'mkdir once || exec $real "$@"'


@pytest.fixture
def tiny(user: UserFolder) -> UserFolder:
    """A tiny run, and a session that does not wait long."""
    user.recipe()
    (user.path / "conftest.py").write_text(IMPATIENT)
    return user


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [
    "$real \"$@\" > /dev/null; echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1",
    '$real "$@" > /dev/null; sleep 300',
    '$real "$@" > /dev/null; printf "\\351\\0garbage\\n"; exit 0',
], ids=["timed-out", "hangs", "garbage"])  # fmt: skip
def test_a_job_that_was_taken_is_found(tiny: UserFolder, mode: str, fault: str) -> None:
    """When sbatch does not print the id, the job is found by its token, used, and gone at the end."""
    wrap(tiny, "sbatch", TEST_ONLY, fault)
    result = tiny.run(*SLURM, *MODES[mode], code=0)
    assert "found by its token" in result.text
    assert result.record()["job_id"].isdigit()


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_outcome_is_no_refusal(tiny: UserFolder, queue: type[Queue], mode: str) -> None:
    """If no job shows itself, the error has sbatch's words, and comes soon."""
    wrap(tiny, "sbatch", TEST_ONLY, "echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1")
    result = tiny.run(*SLURM, *MODES[mode], timeout_s=120)
    assert result.case.outcome == "error", result.text
    assert "it is unknown whether Slurm accepted it" in result.case.message
    assert "Socket timed out" in result.case.message
    assert "refuses" not in result.case.message
    assert queue.jobs_of(result.session) == []


def test_a_job_that_comes_late_is_cancelled(tiny: UserFolder, queue: type[Queue]) -> None:
    """The controller took it after the session had given up: it does nothing, and is gone at the end."""
    late = 'cp "${@: -1}" late.sh; (sleep 5; exec $real late.sh) > /dev/null 2>&1 & disown'
    wrap(tiny, "sbatch", TEST_ONLY, ONCE, late, "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    tiny.recipe(**LONG)
    result = tiny.run(*SLURM, code=0)
    (why,) = result.record()["failed_launches"]
    assert "Socket timed out" in why
    queue.wait_until_empty(result.session, 10)
    assert "had not reported" in result.text


def test_an_id_of_somebody_elses_job_is_not_ours(tiny: UserFolder, queue: type[Queue]) -> None:
    """Sbatch prints a stranger's id: that job is left alone, and ours is found by its token."""
    stranger = queue.run("sbatch", "--parsable", "--nodes=1", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    stranger = stranger.strip()
    try:
        wrap(tiny, "sbatch", TEST_ONLY, '$real "$@" > /dev/null', f"echo {stranger}; exit 0")
        result = tiny.run(*SLURM, "--nodes", "1", code=0)
        assert result.record()["job_id"] != stranger
        queue.wait_until_empty(result.session, 30)
        assert queue.run("squeue", "--noheader", f"--jobs={stranger}", "--format=%T").strip() in {"RUNNING", "PENDING"}
        assert "tiny" not in queue.run("squeue", "--noheader", "--steps", f"--jobs={stranger}", "--format=%j")
    finally:
        queue.run("scancel", stranger)


def test_an_sbatch_that_hangs_keeps_nobody_from_a_run(tiny: UserFolder) -> None:
    """While one submission hangs for minutes, another run is recorded as soon as it is done."""
    (tiny.path / "conftest.py").unlink()
    tiny.recipe("tiny2")
    ill = 'case "$(cat "${@: -1}")" in *llmbench-tiny2*) ;; *) exec $real "$@";; esac'
    wrap(tiny, "sbatch", TEST_ONLY, ill, f"echo $$ > {tiny.path}/hung; sleep 300")
    process = tiny.start(*SLURM)
    tiny.wait_for(lambda _: (tiny.path / "hung").exists())
    tiny.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists())
    assert Path("/proc", (tiny.path / "hung").read_text().strip()).exists()
    process.send_signal(signal.SIGINT)
    result = tiny.finish(process)
    assert result.record("tiny")["problem"] is None
    assert result.record("tiny2")["problem"]["kind"] == "session_ended"


@pytest.mark.parametrize("mode", MODES)
def test_an_squeue_that_hangs_ends_no_run(tiny: UserFolder, watch: type[Watch], mode: str) -> None:
    """The end is not seen late either, as the ranks report it."""
    (tiny.path / "conftest.py").unlink()
    tiny.recipe(**LONG)
    ill = tiny.path / "ill"
    wrap(tiny, "squeue", f'[ -e {ill} ] || exec $real "$@"', "sleep 300")
    process = tiny.start(*SLURM, *MODES[mode])
    tiny.wait_for(lambda session: watch.steps(session) > 3)
    ill.touch()
    tiny.wait_for(lambda session: watch.steps(session) >= LONG["steps"])
    tiny.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists())
    ill.unlink()
    result = tiny.finish(process, code=0)
    assert result.record()["problem"] is None


def test_a_job_that_squeue_never_shows_is_seen_by_its_ranks(tiny: UserFolder) -> None:
    """Slurm's last word was that it had taken it; ranks that write say that it runs, and when they are done."""
    wrap(tiny, "squeue", "sleep 300")
    process = tiny.start(*SLURM)
    tiny.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists())
    (tiny.path / "bin" / "squeue").unlink()
    result = tiny.finish(process, code=0)
    assert result.record()["problem"] is None


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_that_fails_once_costs_nothing(tiny: UserFolder, mode: str) -> None:
    """A launch without a started rank is repeated, and the record has it."""
    if mode == "session":
        fault = "echo 'srun: error: Unable to create step for job 1: Memory required by task is not available' >&2"
        wrap(tiny, "srun", ONCE, f"{fault}; exit 1")
    else:
        wrap(tiny, "sbatch", TEST_ONLY, ONCE, "echo 'sbatch: error: Zero Bytes were transmitted' >&2; exit 1")
    result = tiny.run(*SLURM, *MODES[mode], code=0)
    (why,) = result.record()["failed_launches"]
    assert ("Memory required" if mode == "session" else "Zero Bytes") in why
    assert "run tiny could not be launched" in result.text


@pytest.mark.parametrize("mode", MODES)
def test_a_launcher_that_starts_nothing_and_says_nothing(tiny: UserFolder, mode: str) -> None:
    """An srun that ends with 0 without a rank is no run: the error says what to look at."""
    wrap(tiny, "srun", "exit 0")
    result = tiny.run(*SLURM, *MODES[mode], timeout_s=300)
    assert result.case.outcome == "error", result.text
    assert result.record()["problem"]["kind"] == "launch_failed"
    launcher = {"session": "srun", "run": "its Slurm job"}[mode]
    said = f"{launcher} ended without an error or a word (is something else than Slurm's srun on PATH?)"
    assert f"{said}, and no rank had started" in result.case.message
    assert "launched 3 times" in result.case.message


def test_a_run_that_has_begun_is_not_repeated(tiny: UserFolder, watch: type[Watch]) -> None:
    """A run is measured once, however its launcher ends."""
    tiny.recipe(**LONG)
    count = tiny.path / "count"
    wrap(tiny, "srun", f"echo x >> {count}")
    process = tiny.start(*SLURM, "--nodes", "1")
    session = tiny.wait_for(lambda session: watch.steps(session) > 1 and session)
    (tiny.path / "bin" / "srun").unlink()
    os.kill(watch.pid(session, "tiny", 0), signal.SIGKILL)
    result = tiny.finish(process)
    assert result.record()["problem"]["kind"] == "rank_died"
    assert result.record()["failed_launches"] == []
    assert count.read_text() == "x\n"


def test_launches_that_all_fail_end_the_session(tiny: UserFolder) -> None:
    """After three runs in a row, the remaining ones are not burned."""
    wrap(tiny, "srun", f"echo x >> {tiny.path}/count; echo 'srun: error: Unable to confirm allocation' >&2; exit 1")
    for name in ("tiny1", "tiny2", "tiny3", "tiny4", "tiny5"):
        tiny.recipe(name)
    result = tiny.run("--cluster", "slurm", "-k", "tiny1 or tiny2 or tiny3 or tiny4 or tiny5", "--nodes", "1")
    problems = [result.record(f"tiny{number}")["problem"] for number in range(1, 6)]
    assert {problem["kind"] for problem in problems} == {"launch_failed"}
    assert [problem["message"].startswith("not launched: 3 runs in a row") for problem in problems] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert (tiny.path / "count").read_text().count("x") == 9
    assert "no more runs are launched, as 3 in a row failed to start" in result.text


@pytest.mark.parametrize("mode", MODES)
def test_a_suspended_run_is_not_judged(tiny: UserFolder, watch: type[Watch], queue: type[Queue], mode: str) -> None:
    """Slurm had resumed it, and it ended before the session looked."""
    tiny.recipe(**LONG)
    process = tiny.start(*SLURM, *MODES[mode])
    session = tiny.wait_for(lambda session: watch.steps(session) > 3 and session)
    (job_id,) = queue.jobs_of(session)
    queue.run("scontrol", "suspend", job_id)
    time.sleep(1)
    queue.run("scontrol", "resume", job_id)
    result = tiny.finish(process)
    assert result.case.outcome == "error", result.text
    assert result.record()["problem"]["kind"] == "job_suspended"
    assert result.record()["metrics"] == {}
    assert f"Slurm job {job_id} was SUSPENDED" in result.case.message


@pytest.mark.parametrize(("mode", "accounting"), [("run", True), ("session", False)], ids=["sacct", "ranks"])
def test_a_suspension_that_the_controller_hides(
    tiny: UserFolder, watch: type[Watch], queue: type[Queue], mode: str, accounting: bool
) -> None:
    """The controller is silent from before it until after the run: sacct shows it, or the ranks, who stood still."""
    (tiny.path / "conftest.py").unlink()
    tiny.recipe(**LONG)
    ill, asked = tiny.path / "ill", tiny.path / "asked"
    silent = "error: Unable to contact slurm controller (connect failure)"
    for name in ("squeue", "scontrol", *(() if accounting else ("sacct",))):
        told = f"touch {asked}; echo '{name}: {silent}' >&2; exit 1"
        wrap(tiny, name, f'[ -e {ill} ] || exec $real "$@"', told)
    process = tiny.start(*SLURM, *MODES[mode])
    session = tiny.wait_for(lambda session: watch.steps(session) > 3 and session)
    (job_id,) = queue.jobs_of(session)
    ill.touch()
    tiny.wait_for(lambda _: asked.exists())  # no answer of before is still on its way
    queue.run("scontrol", "suspend", job_id)
    time.sleep(10)
    queue.run("scontrol", "resume", job_id)
    tiny.wait_for(lambda session: (session / "runs" / "tiny" / "record.json").exists())
    ill.unlink()
    result = tiny.finish(process)
    assert result.case.outcome == "error", result.text
    assert result.record()["problem"]["kind"] == "job_suspended"
    assert ("by sacct" if accounting else "rank-00000 paused for") in result.case.message


def test_a_step_cancelled_from_outside_is_said_so(tiny: UserFolder, watch: type[Watch], queue: type[Queue]) -> None:
    tiny.recipe(**LONG)
    process = tiny.start(*SLURM, "--nodes", "1")
    session = tiny.wait_for(lambda session: watch.steps(session) > 3 and session)
    (job_id,) = queue.jobs_of(session)
    steps = queue.run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %j").splitlines()
    (step,) = [line.split()[0] for line in steps if "llmbench-tiny" in line]
    queue.run("scancel", step)
    result = tiny.finish(process)
    assert result.record()["problem"]["kind"] == "job_cancelled", result.text
    assert "cancelled from outside" in result.case.message


SHORT_LIFE = """
from pytest_llmbench.cluster import heartbeat
heartbeat.PERIOD_S = 0.5
"""


def test_a_pause_of_pytest_is_told_as_such(tiny: UserFolder, watch: type[Watch], queue: type[Queue]) -> None:
    """While pytest was stopped, the job that held the nodes ended itself."""
    tiny.recipe(**LONG | {"steps": 100_000})
    (tiny.path / "conftest.py").write_text(SHORT_LIFE)
    process = tiny.start(*SLURM, "--nodes", "1", "-o", "llmbench_heartbeat_timeout=8")
    session = tiny.wait_for(lambda session: watch.steps(session) > 1 and session)
    process.send_signal(signal.SIGSTOP)
    queue.wait_until_empty(session, 60)
    process.send_signal(signal.SIGCONT)
    result = tiny.finish(process)
    assert result.record()["problem"]["kind"] == "allocation", result.text
    assert (
        "ended itself, because pytest had given no sign of life for longer than llmbench_heartbeat_timeout"
        in result.case.message
    )


FAULTY = {
    "squeue": "sleep 300",
    "scancel": "sleep 300",
    "sbatch": "sleep 300",
    "srun": "trap '' TERM INT; while true; do sleep 1; done",
}


@pytest.mark.parametrize("command", FAULTY)
def test_ctrl_c_does_not_wait_for_an_ill_slurm(tiny: UserFolder, watch: type[Watch], command: str) -> None:
    (tiny.path / "conftest.py").unlink()
    tiny.recipe(**LONG)
    asked, ill = tiny.path / "asked", tiny.path / "ill"
    wrap(tiny, command, TEST_ONLY, f'[ -e {ill} ] || exec $real "$@"', f"touch {asked}; {FAULTY[command]}")
    at_once = command in {"sbatch", "srun"}
    if at_once:
        ill.touch()
    process = tiny.start(*SLURM, *(() if command in {"sbatch", "scancel"} else ("--nodes", "1")))
    tiny.wait_for(lambda session: asked.exists() if at_once else watch.steps(session) > 1)
    ill.touch()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    result = tiny.finish(process, timeout_s=120)  # 10 s for Slurm, and what pytest takes on a busy machine
    if command != "srun":
        assert f"waiting for {command} to answer" in result.text


def test_odd_bytes_of_squeue_break_nothing(tiny: UserFolder) -> None:
    wrap(
        tiny, "squeue", "printf 'slurm_load_jobs: \\377\\376\\n'; $real \"$@\"; code=$?; printf '\\351|\\n'; exit $code"
    )
    tiny.run(*SLURM, "--nodes", "1", code=0)


def test_the_environment_does_not_win_over_the_options(tiny: UserFolder, queue: type[Queue]) -> None:
    """SBATCH_* are the user's, but an option on the command line is later; that they are ignored is said."""
    tiny.env |= {"SBATCH_PARTITION": "low", "SBATCH_TIMELIMIT": "2", "SBATCH_ARRAY_INX": "0-2", "SQUEUE_STATES": "PD"}
    tiny.recipe(**LONG)
    process = tiny.start(*SLURM, "--partition", "test", "--time", "7")
    session = tiny.wait_for(lambda session: queue.jobs_of(session) and session)
    (job_id,) = queue.jobs_of(session)
    assert queue.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%P %l").split() == ["test", "7:00"]
    process.send_signal(signal.SIGINT)
    result = tiny.finish(process)
    assert (
        "ignored environment variables: SBATCH_ARRAY_INX, SBATCH_PARTITION, SBATCH_TIMELIMIT, SQUEUE_STATES"
        in result.text
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["proj%2Ffeature", "m%C3%A4rz %%n %j of%2F %t%A%N"])
def test_percent_signs_in_the_folder(tiny: UserFolder, mode: str, name: str) -> None:
    """Jenkins names folders after branches, `/` as %2F: neither Slurm nor submitit replaces anything there."""
    # A log that stays empty is taken away at the end.
    (tiny.path / "sitecustomize.py").write_text("import os\nif 'SLURM_PROCID' in os.environ: print('a rank')\n")
    tiny.env = {**tiny.env, "PYTHONPATH": str(tiny.path)}
    tiny.run(*SLURM, *MODES[mode], "--llmbench-run-dir", f"reports/{name}", code=0)
    (session,) = (tiny.path / "reports" / name).glob("*-*")
    logs = (session / "runs" / "tiny" / "logs").iterdir()
    assert any("a rank" in log.read_text() for log in logs if log.name.endswith(("rank-0.log", "_0_log.out")))
    assert [path.name for path in (tiny.path / "reports").iterdir()] == [name]


@pytest.mark.breaks_nodes
@pytest.mark.parametrize("options", [("--partition", "nowhere"), ()], ids=["refused", "waiting"])
def test_a_drain_reason_in_any_encoding(tiny: UserFolder, queue: type[Queue], options: tuple[str, ...]) -> None:
    reason = os.fsdecode(b"reason=L\xfcfter\nbroken")
    nodes = sorted(set(queue.run("sinfo", "--noheader", "--Node", "--format=%N").split()))
    drain = ["scontrol", "update", f"nodename={nodes[-1]}", "state=drain", reason]
    subprocess.run(drain, check=True, env=clean_environment())
    others = f"--nodes={len(nodes) - 1}"
    blocker = queue.run("sbatch", "--parsable", others, "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    try:
        process = tiny.start(*SLURM, "--nodes", "2", *options)
        if not options:
            tiny.wait_for(queue.jobs_of)
            time.sleep(4)  # for two looks while it waits
    finally:
        queue.run("scancel", blocker.strip())
    result = tiny.finish(process)
    if options:
        assert "nvalid partition" in result.case.message
        assert f"{nodes[-1]} drain" in result.case.message
        assert "fter broken)" in result.case.message
    else:
        assert result.returncode == 0, result.text


def test_many_jobs_take_few_commands(tiny: UserFolder) -> None:
    """One submission each, one question whether Slurm would take their like, and queries for all of them at once."""
    names = [f"tiny{number}" for number in range(8)]
    for name in names:
        tiny.recipe(name)
    for command in ("sbatch", "squeue", "scontrol", "sacct"):
        wrap(tiny, command, f'[ "$SLURM_JOB_ID" ] || echo {command} "$1" >> {tiny.path}/calls')
    result = tiny.run("--cluster", "slurm", "-k", " or ".join(names), code=0)
    calls = Counter((tiny.path / "calls").read_text().splitlines())
    submitted = calls.pop("sbatch --parsable")
    assert (submitted, calls.pop("sbatch --test-only")) == (len(names), 1)
    seconds = result.record(names[0])["timings"]["ended"] - result.record(names[0])["timings"]["submitted"]
    most = 9 + seconds / 10
    assert calls.pop("squeue --noheader") <= most
    assert calls.pop("scontrol --oneliner") <= most
    assert calls == Counter()
