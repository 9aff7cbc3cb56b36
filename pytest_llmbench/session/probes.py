"""Starting a check's probe: its task on disk, then its ranks, by whatever the session's cluster is."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from pytest_llmbench.checks.base import Probe
from pytest_llmbench.cluster.executors import JobRequest, run_here, submit_local
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, StepJob
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.this_host import owner_of
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.session.script.requests import probe_request, srun_command
from pytest_llmbench.workloads.rank.context import Task
from pytest_llmbench.workloads.rank.probe import run_probe


class ProbeLauncher:
    """Starts probes for one session."""

    def __init__(self, settings: Settings, session: Session, heartbeat: Heartbeat, slurm: Slurm) -> None:
        self._settings = settings
        self._session = session
        self._heartbeat = heartbeat
        self._slurm = slurm

    def start(self, probe: Probe, folder: Path, hosts: Sequence[str], job_id: str | None) -> Job:
        """Start a probe on some nodes of Slurm job `job_id`, or on this machine.

        Raises:
            ClusterError: the cluster refuses it.
        """
        settings = self._settings
        request = probe_request(probe, folder, len(hosts), settings, self._session)
        self._write_task(probe, folder, len(hosts))
        if settings.cluster == "debug":
            return FinishedJob(socket.gethostname(), "in this process", run_here(request, run_probe, str(folder)))
        if settings.cluster == "local" or job_id is None:
            submitted = submit_local(request, run_probe, str(folder))
            return LocalJob(submitted, socket.gethostname(), f"submitit local: run_probe({str(folder)!r})")
        return self._step(request, folder, tuple(hosts), job_id)

    def _step(self, request: JobRequest, folder: Path, hosts: tuple[str, ...], job_id: str) -> Job:
        # A node that fails must not take the answers of the others with it.
        command = srun_command(request, "rank.probe", folder, job_id=job_id, hosts=hosts, end_together=False)
        make_folder(request.folder)
        env = clean_environment(self._settings.system.env)
        log = request.folder / "srun.log"
        return StepJob(command, job_id=job_id, hosts=hosts, slurm=self._slurm, env=env, log=log)

    def _write_task(self, probe: Probe, folder: Path, nodes: int) -> None:
        owner = owner_of(self._settings, self._heartbeat)
        task = Task(
            entry=probe.entry,
            config=probe.config,
            nodes=nodes,
            ranks_per_node=probe.ranks_per_node,
            device=self._settings.site_device if probe.gpus else "cpu",
            env=self._settings.system.env,
            owner=owner,
        )
        write_model(folder / "task.json", task)
