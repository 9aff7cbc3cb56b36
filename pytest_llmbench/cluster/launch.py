"""Starting one run: its task on disk, then its ranks, by whatever the session's cluster is."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pytest_llmbench.cluster.allocation import refusal
from pytest_llmbench.cluster.executors import run_here, submit_local, submit_slurm
from pytest_llmbench.cluster.heartbeat import TTL_S, Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, SlurmJob, StepJob
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.requests import run_request, step_command
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm import Slurm, clean_environment
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.records import write_model
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.workloads.context import Owner, Task
from pytest_llmbench.workloads.rank import run_rank

Launch = Callable[[RunSpec, Lease | None], Job]


class Launcher:
    """Starts runs for one session."""

    def __init__(self, settings: Settings, session: Session, heartbeat: Heartbeat, slurm: Slurm) -> None:
        self._settings = settings
        self._session = session
        self._heartbeat = heartbeat
        self._slurm = slurm

    def start(self, run: RunSpec, lease: Lease | None, allocation: str | None) -> Job:
        """Start a run on a lease of Slurm job `allocation`, or as a job of its own where there is none.

        Raises:
            ClusterError: the cluster refuses it.
        """
        self._write_task(run)
        if self._settings.cluster == "local":
            return self._local(run)
        if self._settings.cluster == "debug":
            return self._here(run)
        if lease is None or allocation is None:
            return self._job(run)
        return self._step(run, lease, allocation)

    def _write_task(self, run: RunSpec) -> None:
        topology = self._settings.topology(run.recipe)
        task = get_engine(run.recipe.engine).task(run.recipe, topology)
        write_model(
            self._session.run_folder(run.key) / "task.json",
            Task(
                entry=task.entry,
                config=task.config,
                nodes=topology.nodes,
                ranks_per_node=topology.ranks_per_node,
                device=topology.device,
                env=self._settings.system.env,
                owner=None if self._settings.cluster == "debug" else Owner(path=self._heartbeat.path, ttl_s=TTL_S),
            ),
        )

    def _local(self, run: RunSpec) -> Job:
        folder = str(self._session.run_folder(run.key))
        submitted = submit_local(run_request(run, self._settings, self._session), run_rank, folder)
        return LocalJob(submitted, socket.gethostname(), f"submitit local: run_rank({folder!r})")

    def _here(self, run: RunSpec) -> Job:
        folder = str(self._session.run_folder(run.key))
        error = run_here(run_request(run, self._settings, self._session), run_rank, folder)
        return FinishedJob(socket.gethostname(), f"in this process: run_rank({folder!r})", error)

    def _job(self, run: RunSpec) -> Job:
        request = run_request(run, self._settings, self._session)
        try:
            submitted = submit_slurm(request, run_rank, str(self._session.run_folder(run.key)))
        except ClusterError as error:
            raise ClusterError(refusal(error, request, self._slurm), command=error.command) from error
        return SlurmJob(submitted, self._slurm)

    def _step(self, run: RunSpec, lease: Lease, job_id: str) -> Job:
        request = run_request(run, self._settings, self._session)
        command = step_command(run, self._settings, self._session, job_id=job_id, hosts=lease.hosts)
        request.folder.mkdir(parents=True, exist_ok=True)
        env = clean_environment(self._settings.system.env)
        log = request.folder / "srun.log"
        return StepJob(command, job_id=job_id, hosts=lease.hosts, slurm=self._slurm, env=env, log=log)
