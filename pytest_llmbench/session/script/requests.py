"""Requests to the cluster for a session: the job that holds nodes, the job or the step of a run."""

import heapq
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import CheckSettings, Probe, deadline_of, get_check
from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings, existing_allocation, existing_nodes
from pytest_llmbench.cluster.slurm.keys import SLURM_DEFAULTS
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.wire import layout

_SLACK_MIN = 5


def holder_request(plan: Plan, settings: Settings, session: Session) -> JobRequest:
    """The job that holds `--nodes` nodes for all checks and runs of the session."""
    checked = [settings.gpus_of_a_node or 0] if plan.checks else []
    return JobRequest(
        name="llmbench-hold",
        folder=session.folder / layout.HOLDER,
        nodes=settings.nodes or 1,
        gpus_per_node=max([*checked, *(settings.topology(run.recipe).gpus_per_node for run in plan.runs)]),
        tasks_per_node=1,
        time_min=_session_minutes(plan, settings),
        use_srun=False,
        # A check survives to report a dead node, and runs go on in the nodes that are left.
        outlives_nodes=True,
        **_common(settings, session),
    )


def run_request(run: RunSpec, topology: Topology, settings: Settings, session: Session, *, driven: bool) -> JobRequest:
    """The job, or the local processes, of one run; if `driven`, one process on the first node runs its script."""
    return JobRequest(
        name=f"llmbench-{run.key}",
        folder=session.run_folder(run.key) / layout.LOGS,
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        tasks_per_node=1 if driven else topology.ranks_per_node,
        use_srun=not driven,
        time_min=settings.time_limit_min(run.recipe),
        **_common(settings, session),
    )


def probe_request(probe: Probe, folder: Path, nodes: int, settings: Settings, session: Session) -> JobRequest:
    """The step, or the local processes, of one probe of a check."""
    return JobRequest(
        name=f"llmbench-{probe.name}",
        folder=folder / layout.LOGS,
        nodes=nodes,
        gpus_per_node=(settings.gpus_of_a_node or 0) if probe.gpus else 0,
        tasks_per_node=probe.ranks_per_node,
        time_min=math.ceil(probe.deadline_s / 60),
        **_common(settings, session),
    )


def hours_at_most(plan: Plan, settings: Settings, session: Session) -> float:
    """GPU-hours that a session takes at worst, by its time limits; a node whose GPUs are not used counts as one."""
    if settings.cluster == "slurm" and settings.allocation == "session" and existing_allocation() is None:
        holder = holder_request(plan, settings, session)
        return holder.nodes * (holder.gpus_per_node or 1) * holder.time_min / 60 * (1 + settings.retries)
    runs = ((settings.topology(run.recipe), settings.time_limit_min(run.recipe)) for run in plan.runs)
    checked = (settings.nodes or existing_nodes() or 1) * (settings.gpus_of_a_node or 1)
    minutes = sum((topology.gpus or topology.nodes) * limit for topology, limit in runs)
    return (minutes * (1 + settings.retries) + checked * _check_minutes(plan, settings)) / 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Startable:
    """Processes that can be started: the ranks of a run or of a probe, or the driver of a command.

    Attributes:
        function: entry of each, called with `folder`; in a step, its module is the command.
        folder: has their task.
        driven: it is the driver of a command, one process on the first node.
        end_together: one that fails ends the others.
    """

    request: JobRequest
    function: Callable[[str], None]
    folder: Path
    driven: bool = False
    end_together: bool = True

    def step_command(self, job_id: str, hosts: Sequence[str]) -> list[str]:
        """The srun command that starts them on nodes of a held job, from outside it."""
        request, together, on = self.request, self.end_together, hosts[:1] if self.driven else hosts
        return [
            "srun", f"--jobid={job_id}", "--overlap", "--mem=0", f"--kill-on-bad-exit={int(together)}", "--unbuffered",
            "--cpu-bind=none", f"--nodes={len(on)}", f"--nodelist={','.join(on)}",
            f"--ntasks={len(on) * request.tasks_per_node}", f"--ntasks-per-node={request.tasks_per_node}",
            *([] if together else ["--wait=0", "--distribution=block"]),
            *([f"--gpus-per-node={request.gpus_per_node}"] if request.gpus_per_node else []),
            f"--job-name={request.name}", *request.step_logs, *request.srun_args, *self._task_command,
        ]  # fmt: skip

    @property
    def _task_command(self) -> list[str]:
        argv = [*shlex.split(self.request.interpreter), "-u", "-m", self.function.__module__, str(self.folder)]
        setup = self.request.step_setup
        return ["bash", "-c", "\n".join(["set -e", *setup, f"exec {shlex.join(argv)}"])] if setup else argv


def _session_minutes(plan: Plan, settings: Settings) -> int:
    """`--time`, or as long as checks and runs take at worst, the runs in order on as many lanes as there are."""
    if settings.time_min is not None:
        return settings.time_min
    lanes = [0] * _runs_at_once(settings)
    for run in plan.runs:
        heapq.heappush(lanes, heapq.heappop(lanes) + run.recipe.time_limit)
    # Longer than the runs: a slow run is ended by its own limit, with a better message than the job's.
    return _check_minutes(plan, settings) + max(lanes) + _SLACK_MIN


def _check_minutes(plan: Plan, settings: Settings) -> int:
    """As long as checks may take: the longest of each family, whose checks share most of their measurements."""
    longest: dict[str, float] = {}
    for name in plan.checks:
        check = get_check(name)
        own = settings.system.validation.get(name, CheckSettings())
        longest[check.family] = max(longest.get(check.family, 0.0), deadline_of(check, own))
    return math.ceil(sum(longest.values()) / 60)


def _runs_at_once(settings: Settings) -> int:
    nodes = settings.nodes or 1
    lanes = nodes // (settings.nodes_per_run or nodes)
    return max(1, min(lanes, settings.max_runs or lanes))


def _common(settings: Settings, session: Session) -> dict[str, Any]:
    system = settings.system
    defaults = {option: value for option in SLURM_DEFAULTS if (value := getattr(system, option)) is not None}
    return {
        "comment": " ".join(filter(None, (session.token, settings.slurm.get("comment")))),
        "slurm": defaults | dict(settings.slurm),
        "setup": system.setup,
        "srun_args": system.srun_args,
        "python": system.python,
    }
