"""Slurm's commands that hang, fail or print nonsense, and daemons that are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.declared.jobs import PASS, node_of
from benchmarks.faults.declared.ranks import error
from benchmarks.faults.judging import Expected
from benchmarks.faults.scenes import SHORT, Fault, Struck
from tests.conftest import UserFolder
from tests.slurm.conftest import Queue, wrap
from tests.slurm.test_ill_slurm import IMPATIENT, ONCE, TEST_ONLY

# A file that the program in front of a command makes when the fault strikes.
STRUCK = "struck"
LOST = "sbatch: error: Batch job submission failed: Socket timed out"
LONG: dict[str, Any] = {**SHORT, "steps": 120}


def playing(command: str, *lines: str) -> Callable[[UserFolder], None]:
    """A program in front of a Slurm command, and a session that does not wait long for it."""

    def prepare(user: UserFolder) -> None:
        (user.path / "conftest.py").write_text(IMPATIENT)
        wrap(user, command, *lines[:-1], f"touch {user.path}/{STRUCK}", lines[-1])

    return prepare


def sacct_fails(user: UserFolder) -> None:
    """Nobody asks sacct for a job that squeue shows."""
    wrap(user, "squeue", "exit 0")
    playing("sacct", "echo 'sacct: error: slurmdbd is down' >&2; exit 1")(user)


def ill_later(command: str, *lines: str) -> Callable[[UserFolder], None]:
    """The same, as soon as the file `ill` is there."""

    def prepare(user: UserFolder) -> None:
        wrap(user, command, f'[ -e {user.path}/ill ] || exec $real "$@"', f"touch {user.path}/{STRUCK}", *lines)

    return prepare


def fall_ill(run: Struck) -> None:
    """See `ill_later`."""
    (run.user.path / "ill").touch()


def kill_daemon(pattern: str, away_s: float) -> None:
    """Kill a daemon without giving it time to save anything, and start it again."""
    base = Path(os.environ.get("LLMBENCH_SLURM", "/tmp/llmbench-slurm"))
    (pid_file,) = (base / "run").glob(pattern)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    time.sleep(away_s)
    Queue.mend()


def command(name: str, done: str, prepare: Callable[[UserFolder], None], expected: Expected, *options: str) -> Fault:
    """A Slurm command that is ill from the beginning."""
    return Fault(
        name=name,
        family="Slurm",
        scene="alone",
        done=done,
        prepare=prepare,
        expected=expected,
        options=options,
        proof=STRUCK,
    )


def found(answer: str) -> Callable[[UserFolder], None]:
    """An sbatch that submits, and whose answer is another."""
    return playing("sbatch", TEST_ONLY, '$real "$@" > /dev/null', answer)


FOUND = Expected(exit=0, verdict="PASS", told=("found by its token",))
UNKNOWN = "it is unknown whether Slurm accepted it"
NONSENSE = "printf 'slurm_load_jobs: \\377\\376\\n'; $real \"$@\"; code=$?; printf '\\351|\\n'; exit $code"
NO_STEP = "srun: error: Unable to create step for job 1: Memory required by task is not available"

FAULTS = [
    command("sbatch-answer-lost", "sbatch times out after Slurm has accepted the job",
            found(f"echo '{LOST}' >&2; exit 1"), FOUND),
    command("sbatch-answer-lost-held", "The same for held nodes",
            found(f"echo '{LOST}' >&2; exit 1"), FOUND, "--nodes", "1"),
    command("sbatch-hangs", "sbatch hangs after Slurm has accepted the job", found("sleep 300"), FOUND),
    command("sbatch-nonsense", "sbatch prints nonsense and no id",
            found('printf "\\351\\0garbage\\n"; exit 0'), FOUND),
    command("sbatch-unknown", "sbatch times out, and no job shows itself",
            playing("sbatch", TEST_ONLY, f"echo '{LOST}' >&2; exit 1"),
            error("launch_failed", words=(UNKNOWN, "Socket timed out"))),
    command("sbatch-fails-once", "One sbatch fails, the next one does not",
            playing("sbatch", TEST_ONLY, ONCE, "echo 'sbatch: error: Zero Bytes were transmitted' >&2; exit 1"),
            Expected(exit=0, verdict="PASS", told=("could not be launched",))),
    command("squeue-nonsense", "squeue prints bytes that are not UTF-8", playing("squeue", NONSENSE), PASS),
    command("squeue-empty", "squeue prints nothing", playing("squeue", "exit 0"), PASS),
    command("sacct-fails", "squeue prints nothing, and sacct fails", sacct_fails, PASS),
    command("srun-starts-nothing", "srun ends with 0 and has started no rank", playing("srun", "exit 0"),
            error("launch_failed", words=("no rank had started", "launched 3 times")), "--nodes", "1"),
    command("srun-fails-once", "One srun fails, the next one does not",
            playing("srun", ONCE, f"echo '{NO_STEP}' >&2; exit 1"),
            Expected(exit=0, verdict="PASS", told=("could not be launched",)), "--nodes", "1"),
    Fault(
        name="squeue-hangs", family="Slurm", scene="alone", done="squeue hangs during a run", recipe=SHORT,
        prepare=ill_later("squeue", "sleep 300"), strike=fall_ill, proof=STRUCK, expected=PASS,
    ),
    Fault(
        name="controller-killed", family="Slurm", scene="daemons", recipe=LONG, options=("--llmbench-retries", "2"),
        done="SIGKILL to slurmctld during a run; it is back after 3 s",
        strike=lambda _: kill_daemon("slurmctld.pid", 3.0), expected=PASS,
    ),
    Fault(
        name="controller-killed-held", family="Slurm", scene="daemons", recipe=LONG,
        # Slurm may not have saved the start of the job that holds the nodes; it ends the run's step then (`job_lost`).
        options=("--nodes", "1", "--llmbench-retries", "2"), done="The same in held nodes",
        strike=lambda _: kill_daemon("slurmctld.pid", 3.0), expected=PASS,
    ),
    Fault(
        name="node-daemon-killed", family="Slurm", scene="daemons", recipe=LONG,
        done="SIGKILL to the slurmd of a run's node; it is back after 3 s",
        strike=lambda run: kill_daemon(f"slurmd*{node_of(run)}.pid", 3.0), expected=PASS,
    ),
]  # fmt: skip
