"""Pytest that is killed, stopped, interrupted or resumed."""

from __future__ import annotations

import signal
from typing import Any

from benchmarks.faults.declared.jobs import ONE, PASS, waits
from benchmarks.faults.declared.ranks import error
from benchmarks.faults.declared.slurm import STRUCK, fall_ill, ill_later
from benchmarks.faults.judging import Expected
from benchmarks.faults.scenes import SHORT, Fault, Struck
from tests.conftest import UserFolder
from tests.slurm.conftest import Queue, wrap
from tests.slurm.test_ill_slurm import SHORT_LIFE, TEST_ONLY

SOON = ("-o", "llmbench_heartbeat_timeout=15")
HELD = (*SOON, "--nodes", "1")
WATCHMAN = "from pytest_llmbench.cluster.slurm import watchman\nwatchman.RESUMED_WITHIN_S = 4.0\n"


def ended(name: str, number: signal.Signals, expected: Expected, *options: str, **more: Any) -> Fault:
    """A signal to pytest while its run goes on."""
    held = ", with held nodes" if "--nodes" in options else ""
    again = {0: "", 1: "; resumed", 2: "; resumed twice"}[more.get("resumes", 0)]
    return Fault(
        name=name, family="pytest", scene="alone", done=f"{number.name} to pytest{held}{again}",
        options=options, expected=expected, strike=lambda run: run.process.send_signal(number),
        recipe=more.pop("recipe", ONE), **more,
    )  # fmt: skip


def late_jobs(user: UserFolder) -> None:
    """Jobs that wait for an hour, and a watchman who does not."""
    (user.path / "conftest.py").write_text(WATCHMAN)
    wrap(user, "sbatch", TEST_ONLY, 'exec $real --begin=now+1hour "$@"')


def pause(run: Struck) -> None:
    """Stop pytest until its jobs are gone."""
    run.process.send_signal(signal.SIGSTOP)
    Queue.wait_until_empty(run.session, 60)
    run.process.send_signal(signal.SIGCONT)


def interrupt_ill(run: Struck) -> None:
    """Ctrl-C, when Slurm no longer answers."""
    fall_ill(run)
    run.process.send_signal(signal.SIGINT)


# The report that is there from the beginning has an error for each test that was not judged.
KILLED = Expected(exit=-signal.SIGKILL)
INTERRUPTED = Expected(exit=2, kinds=("session_ended",), words=("the session ended before this run did",))
# It was judged at the first time, and there is nothing left at the second.
JUDGED = Expected(exit=4, verdict="PASS", told=("is left to resume",))
FAULTS = [
    ended("pytest-killed", signal.SIGKILL, KILLED, *SOON),
    ended("pytest-killed-held", signal.SIGKILL, KILLED, *HELD),
    ended("pytest-interrupted", signal.SIGINT, INTERRUPTED, *SOON),
    ended("pytest-interrupted-held", signal.SIGINT, INTERRUPTED, *HELD),
    ended("pytest-terminated", signal.SIGTERM, INTERRUPTED, *SOON),
    ended("pytest-hung-up", signal.SIGHUP, INTERRUPTED, *SOON),
    ended("pytest-resumed", signal.SIGKILL, PASS, recipe=SHORT, resumes=1),
    ended("pytest-resumed-twice", signal.SIGKILL, JUDGED, recipe=SHORT, resumes=2),
    ended("pytest-resumed-held", signal.SIGKILL, PASS, "--nodes", "1", recipe=SHORT, resumes=1),
    ended("pytest-killed-while-its-job-waits", signal.SIGKILL, KILLED, *SOON, prepare=late_jobs, ready=waits),
    Fault(
        name="pytest-stopped", family="pytest", scene="alone", recipe=ONE,
        options=("--nodes", "1", "-o", "llmbench_heartbeat_timeout=8"),
        done="SIGSTOP to pytest until its nodes are given back",
        prepare=lambda user: (user.path / "conftest.py").write_text(SHORT_LIFE), strike=pause,
        expected=error("allocation", words=("pytest had given no sign of life",)),
    ),
    Fault(
        name="interrupted-while-squeue-hangs", family="pytest", scene="alone", recipe=ONE, options=HELD,
        done="SIGINT to pytest while squeue hangs", prepare=ill_later("squeue", "sleep 30"), strike=interrupt_ill,
        proof=STRUCK, expected=INTERRUPTED,
    ),
]  # fmt: skip
