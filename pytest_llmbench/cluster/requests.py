"""What is asked of the cluster for a session: the job that holds nodes, the job or the step of a run."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Sequence
from typing import Any

from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import SLURM_DEFAULTS, Settings

_SLACK_MIN = 5


def holder_request(runs: Sequence[RunSpec], settings: Settings, session: Session) -> JobRequest:
    """The job that holds `--nodes` nodes for all runs of the session."""
    return JobRequest(
        name="llmbench-hold",
        folder=session.folder / "allocation",
        nodes=settings.nodes or 1,
        gpus_per_node=max(settings.topology(run.recipe).gpus_per_node for run in runs),
        tasks_per_node=1,
        time_min=_session_minutes(runs, settings),
        use_srun=False,
        **_common(settings, session),
    )


def run_request(run: RunSpec, settings: Settings, session: Session) -> JobRequest:
    """The job, or the local processes, of one run."""
    topology = settings.topology(run.recipe)
    return JobRequest(
        name=f"llmbench-{run.key}",
        folder=session.run_folder(run.key) / "logs",
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        tasks_per_node=topology.ranks_per_node,
        time_min=settings.time_limit_min(run.recipe),
        **_common(settings, session),
    )


def step_command(run: RunSpec, settings: Settings, session: Session, *, job_id: str, hosts: Sequence[str]) -> list[str]:
    """The srun command that starts a run as a step of a held job, from outside it."""
    request = run_request(run, settings, session)
    return [
        "srun", f"--jobid={job_id}", "--overlap", "--mem=0", "--kill-on-bad-exit=1", "--unbuffered", "--cpu-bind=none",
        f"--nodes={request.nodes}", f"--nodelist={','.join(hosts)}",
        f"--ntasks={request.nodes * request.tasks_per_node}", f"--ntasks-per-node={request.tasks_per_node}",
        *([f"--gpus-per-node={request.gpus_per_node}"] if request.gpus_per_node else []),
        f"--job-name={request.name}", f"--output={request.folder}/rank-%t.log", *request.srun_args,
        *_rank_command(request.interpreter, str(session.run_folder(run.key)), request.setup),
    ]  # fmt: skip


def _rank_command(interpreter: str, folder: str, setup: tuple[str, ...]) -> list[str]:
    """What each rank of a step runs: Python itself, or a shell that prepares for it first."""
    argv = [*shlex.split(interpreter), "-u", "-m", "pytest_llmbench.workloads.rank", folder]
    return ["bash", "-c", "\n".join(["set -e", *setup, f"exec {shlex.join(argv)}"])] if setup else argv


def _session_minutes(runs: Sequence[RunSpec], settings: Settings) -> int:
    """`--time`, or as long as the runs take at worst, in their order on as many lanes as there are."""
    if settings.time_min is not None:
        return settings.time_min
    lanes = [0] * _runs_at_once(settings)
    for run in runs:
        heapq.heappush(lanes, heapq.heappop(lanes) + run.recipe.time_limit)
    # So that a run that is too slow is ended by its own limit, which can say so, not by the job's.
    return max(lanes) + _SLACK_MIN


def _runs_at_once(settings: Settings) -> int:
    nodes = settings.nodes or 1
    lanes = nodes // (settings.nodes_per_run or nodes)
    return max(1, min(lanes, settings.max_runs or lanes))


def _common(settings: Settings, session: Session) -> dict[str, Any]:
    """What every job of a session asks for: the system file's defaults, the user's options over them."""
    system = settings.system
    defaults = {option: value for option in SLURM_DEFAULTS if (value := getattr(system, option)) is not None}
    return {
        "comment": " ".join(filter(None, (session.token, settings.slurm.get("comment")))),
        "slurm": defaults | dict(settings.slurm),
        "setup": system.setup,
        "srun_args": system.srun_args,
        "python": system.python,
    }
