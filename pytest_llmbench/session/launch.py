"""Starting one run: its task on disk, then its ranks, by whatever the session's cluster is."""

from __future__ import annotations

import socket

from pytest_llmbench.cluster.allocation import refusal
from pytest_llmbench.cluster.executors import run_here, submit_local, submit_slurm
from pytest_llmbench.cluster.heartbeat import TTL_S, Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, SlurmJob, StepJob
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.this_host import owner_of, ranks_lock
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import PRIVATE, make_folder, write_text
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire.driver import SCRIPT_FILE, TASK_FILE, CommandTask
from pytest_llmbench.engines.base import Script
from pytest_llmbench.session.script.prepared import PreparedRun
from pytest_llmbench.session.script.preparing import opened, setup_of
from pytest_llmbench.session.script.scripts import labels_of
from pytest_llmbench.workloads.rank.context import Task


class Launcher:
    """Starts runs for one session."""

    def __init__(self, settings: Settings, session: Session, heartbeat: Heartbeat, slurm: Slurm) -> None:
        self._settings = settings
        self._session = session
        self._heartbeat = heartbeat
        self._slurm = slurm

    def start(self, run: PreparedRun, lease: Lease | None, allocation: str | None) -> Job:
        """Start a run on a lease of Slurm job `allocation`, or as a job of its own where there is none.

        Raises:
            ClusterError: the cluster refuses it.
        """
        self._write_task(run, lease)
        if self._settings.cluster == "local":
            return self._local(run)
        if self._settings.cluster == "debug":
            return self._here(run)
        if lease is None or allocation is None:
            return self._job(run)
        return self._step(run, lease, allocation)

    def _write_task(self, run: PreparedRun, lease: Lease | None) -> None:
        work, topology = run.work, run.topology
        if isinstance(work, Script):
            self._write_script(run, lease, labels_of(work, run.place, topology))
            return
        task = Task(
            entry=work.entry,
            config=work.config,
            nodes=topology.nodes,
            ranks_per_node=topology.ranks_per_node,
            device=topology.device,
            env={**work.env, **self._settings.system.env},
            owner=owner_of(self._settings, self._heartbeat),
            token=self._session.run_token(run.key),
        )
        write_model(run.place.folder / "task.json", task)

    def _write_script(self, run: PreparedRun, lease: Lease | None, labels: int) -> None:
        topology, place, environment = run.topology, run.place, run.place.environment
        container = environment.container
        env = {**self._settings.system.env, **environment.env}
        task = CommandTask(
            nodes=topology.nodes,
            ranks_per_node=topology.ranks_per_node,
            device=topology.device,
            token=self._session.run_token(run.key),
            labels=labels,
            # Locally, the name of this host is what the driver finds for itself.
            hosts=lease.hosts if lease is not None and place.slurm else (),
            prepare=run.preparations,
            setup=setup_of(environment),
            python=environment.python,
            root=environment.root,
            env=env,
            secrets=environment.secrets,
            image=container.image if container else None,
            mounts=(f"{place.folder}:{place.folder}", *container.mounts) if container else (),
            inside=opened(container, place, {*env, *environment.secrets}) if container else "",
            owner=None if self._settings.cluster == "debug" else self._heartbeat.path,
            ttl_s=TTL_S,
            machine_lock=ranks_lock(self._settings),
        )
        write_model(place.folder / TASK_FILE, task)
        write_text(place.folder / SCRIPT_FILE, run.script or "", mode=PRIVATE)

    def _local(self, run: PreparedRun) -> Job:
        folder = str(run.place.folder)
        submitted = submit_local(run.request, run.function, folder)
        command = f"submitit local: {run.function.__name__}({folder!r})"
        return LocalJob(submitted, socket.gethostname(), command, driven=run.script is not None)

    def _here(self, run: PreparedRun) -> Job:
        folder = str(run.place.folder)
        error = run_here(run.request, run.function, folder)
        return FinishedJob(socket.gethostname(), f"in this process: {run.function.__name__}({folder!r})", error)

    def _job(self, run: PreparedRun) -> Job:
        try:
            submitted = submit_slurm(self._slurm, run.request, run.function, str(run.place.folder))
        except ClusterError as error:
            raise refusal(error, run.request, self._slurm) from error
        return SlurmJob(submitted, self._slurm)

    def _step(self, run: PreparedRun, lease: Lease, job_id: str) -> Job:
        command = run.step_command(job_id, lease.hosts)
        make_folder(run.request.folder)
        env = clean_environment(self._settings.system.env)
        log = run.request.folder / "srun.log"
        return StepJob(command, job_id=job_id, hosts=lease.hosts, slurm=self._slurm, env=env, log=log)
