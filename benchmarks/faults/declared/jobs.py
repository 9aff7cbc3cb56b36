"""Faults that Slurm, or a person with its commands, causes to jobs."""

from __future__ import annotations

import subprocess
from typing import Any

from benchmarks.faults.declared.ranks import error
from benchmarks.faults.judging import Expected
from benchmarks.faults.scenes import ENDLESS, SHORT, Fault, Struck
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.core.record.records import ProblemKind
from tests.conftest import UserFolder
from tests.slurm.conftest import Queue, wrap
from tests.slurm.test_ill_slurm import TEST_ONLY

ONE: dict[str, Any] = {**ENDLESS, "nodes": 1}
PASS = Expected(exit=0, verdict="PASS")


def node_of(run: Struck) -> str:
    """The last node of its job."""
    nodes = Queue.run("squeue", "--noheader", "--format=%N", f"--jobs={run.job}").strip()
    return Queue.run("scontrol", "show", "hostnames", nodes).split()[-1]


def set_node(run: Struck, state: str) -> None:
    """Take its node out of service."""
    Queue.run("scontrol", "update", f"nodename={node_of(run)}", f"state={state}", "reason=power supply")


def suspend(run: Struck) -> None:
    """And resume at once."""
    Queue.run("scontrol", "suspend", run.job)
    Queue.run("scontrol", "resume", run.job)


def requeue(run: Struck) -> None:
    """Slurm refuses that for a job that may not be started twice."""
    done = subprocess.run(["scontrol", "requeue", run.job], capture_output=True, check=False, env=clean_environment())
    assert done.returncode, "Slurm has requeued a job that was submitted with --no-requeue"
    assert b"disabled" in done.stderr, f"Slurm refuses it for another reason: {done.stderr!r}"


def preempt(run: Struck) -> None:
    """A job of a higher priority wants its node; it gives the node back after a while."""
    high = ("--partition=high", f"--nodelist={node_of(run)}", "--exclusive", "--output=/dev/null", "--wrap=sleep 20")
    Queue.run("sbatch", "--nodes=1", *high)


def starts_late(key: str) -> Any:
    """Let the job of one run, and none other, wait in the queue."""

    def prepare(user: UserFolder) -> None:
        of_it = f'case "$(cat "${{@: -1}}")" in *{key}*) exec $real --begin=now+1hour "$@";; esac'
        wrap(user, "sbatch", TEST_ONLY, of_it)

    return prepare


def waits(run: Struck) -> bool:
    """Whether its job is in the queue."""
    names = Queue.run("squeue", "--noheader", "--format=%j|%k").splitlines()
    return any(f"llmbench-{run.key}|" in line and run.session.name in line for line in names)


def cancel_step(run: Struck) -> None:
    """The step of the run, not the job that holds the nodes."""
    steps = Queue.run("squeue", "--noheader", "--steps", f"--jobs={run.job}", "--format=%i %j").splitlines()
    Queue.run("scancel", *[line.split()[0] for line in steps if f"llmbench-{run.key}" in line])


# Slurm checks time limits twice a minute, and llmbench checks its own clock. The first to notice ends the run.
OVER: tuple[ProblemKind, ...] = ("time_limit", "job_timeout")


def refused(name: str, done: str, options: tuple[str, ...], words: str, nodes: int = 1) -> Fault:
    """A request that Slurm cannot meet."""
    return Fault(
        name=f"refused-{name}", family="jobs", scene="alone", options=options,
        done=f"Slurm refuses {done} (`{' '.join(options)}`)",
        recipe={"nodes": nodes, "global_batch_size": 4 * 99},
        expected=error("allocation", words=("Slurm refuses", words)),
    )  # fmt: skip


FAULTS = [
    Fault(
        name="job-cancelled", family="jobs", scene="jobs", recipe=ONE,
        done="`scancel` of a run's job", strike=lambda run: Queue.run("scancel", run.job),
        expected=error("job_cancelled", words=("ended as CANCELLED", "cancelled from outside")),
    ),
    Fault(
        name="step-cancelled", family="jobs", scene="held", recipe=ENDLESS,
        done="`scancel` of a run's step in held nodes", strike=cancel_step,
        expected=error("job_cancelled", words=("cancelled from outside",)),
    ),
    Fault(
        name="holder-cancelled", family="jobs", scene="alone", recipe=ENDLESS, options=("--nodes", "2"),
        done="`scancel` of the job that holds the nodes", strike=lambda run: Queue.run("scancel", run.job),
        expected=error("job_cancelled", words=("ended as CANCELLED", "cancelled from outside")),
    ),
    Fault(
        name="job-suspended", family="jobs", scene="jobs", recipe={**SHORT, "steps": 150},
        done="`scontrol suspend`, then `resume`", strike=suspend,
        expected=error("job_suspended", words=("was SUSPENDED",)),
    ),
    Fault(
        name="job-held", family="jobs", scene="jobs", recipe=ONE, done="`scontrol hold` while the job waits",
        prepare=starts_late("fault_job_held"), ready=waits, strike=lambda run: Queue.run("scontrol", "hold", run.job),
        expected=error("allocation", words=("will never start", "JobHeldAdmin")),
    ),
    Fault(
        name="job-preempted", family="jobs", scene="alone", recipe=ONE, options=("--partition", "low"),
        done="A job of a higher priority takes the node", strike=preempt,
        expected=error("job_preempted", words=("priority",)),
    ),
    Fault(
        name="run-over-time", family="jobs", scene="jobs", recipe={**ONE, "time_limit": 1},
        done="A run does not end within its `time_limit` of a minute",
        expected=error(*OVER, words=("--time",)),
    ),
    Fault(
        name="session-over-time", family="jobs", scene="alone", recipe=ONE, options=("--nodes", "1", "--time", "1"),
        done="Held nodes reach `--time 1`", expected=error(*OVER, words=("--time",)),
    ),
    Fault(
        name="node-down", family="jobs", scene="jobs", recipe=ONE,
        done="A node is set down under its run", strike=lambda run: set_node(run, "down"),
        expected=error("job_node_fail", words=("failed",)),
    ),
    Fault(
        name="node-drained", family="jobs", scene="survived", recipe=SHORT,
        done="A node is drained under its run", strike=lambda run: set_node(run, "drain"), expected=PASS,
    ),
    Fault(
        name="job-requeued", family="jobs", scene="survived", recipe=SHORT,
        done="`scontrol requeue`, which Slurm refuses", strike=requeue, expected=PASS,
    ),
    refused("partition", "a partition that there is not", ("--partition", "nowhere"), "nvalid partition"),
    refused("held-partition", "it for held nodes", ("--nodes", "1", "--partition", "nowhere"), "nvalid partition"),
    refused("nodes", "more nodes than there are", ("--nodes", "99"), "ode count", 99),
    refused("time", "a longer time than the partition's", ("--partition", "small", "--time", "20"), "ime limit"),
]  # fmt: skip
