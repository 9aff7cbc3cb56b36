"""Starting one run: its task on disk, then its ranks, by whatever the session's cluster is."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pytest_llmbench.cluster.allocation import refusal
from pytest_llmbench.cluster.executors import run_here, submit_local, submit_slurm
from pytest_llmbench.cluster.heartbeat import TTL_S, Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, SlurmJob, StepJob
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.this_host import owner_of, ranks_lock
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import PRIVATE, make_folder, write_text
from pytest_llmbench.core.record.records import write_model
from pytest_llmbench.core.wire.driver import SCRIPT_FILE, TASK_FILE, CommandTask
from pytest_llmbench.engines.base import Script, get_engine
from pytest_llmbench.session.script.preparing import opened, preparations, setup_of
from pytest_llmbench.session.script.requests import is_command, place_of, run_request, run_script, step_command
from pytest_llmbench.session.script.scripts import labels_of
from pytest_llmbench.workloads.node.command import run_command
from pytest_llmbench.workloads.rank.context import Task
from pytest_llmbench.workloads.rank.main import run_rank

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
        self._write_task(run, lease)
        if self._settings.cluster == "local":
            return self._local(run)
        if self._settings.cluster == "debug":
            return self._here(run)
        if lease is None or allocation is None:
            return self._job(run)
        return self._step(run, lease, allocation)

    def _write_task(self, run: RunSpec, lease: Lease | None) -> None:
        topology = self._settings.topology(run.recipe)
        place = place_of(run, self._settings, self._session)
        work = get_engine(run.recipe.engine).work(run.recipe, topology, place)
        if isinstance(work, Script):
            self._write_script(run, lease, labels_of(work, place, topology))
        else:
            owner = owner_of(self._settings, self._heartbeat)
            task = Task(
                entry=work.entry,
                config=work.config,
                nodes=topology.nodes,
                ranks_per_node=topology.ranks_per_node,
                device=topology.device,
                env={**work.env, **self._settings.system.env},
                owner=owner,
                token=self._session.run_token(run.key),
            )
            write_model(place.folder / "task.json", task)

    def _write_script(self, run: RunSpec, lease: Lease | None, labels: int) -> None:
        topology = self._settings.topology(run.recipe)
        place = place_of(run, self._settings, self._session)
        environment, container = place.environment, place.environment.container
        env = {**self._settings.system.env, **environment.env}
        task = CommandTask(
            nodes=topology.nodes,
            ranks_per_node=topology.ranks_per_node,
            device=topology.device,
            token=self._session.run_token(run.key),
            labels=labels,
            # Locally, the name of this host is what the driver finds for itself.
            hosts=lease.hosts if lease is not None and place.slurm else (),
            prepare=preparations(run.recipe, place),
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
        write_text(place.folder / SCRIPT_FILE, run_script(run, self._settings, self._session) or "", mode=PRIVATE)

    def _local(self, run: RunSpec) -> Job:
        function, folder = _function_of(run), str(self._session.run_folder(run.key))
        submitted = submit_local(run_request(run, self._settings, self._session), function, folder)
        command = f"submitit local: {function.__name__}({folder!r})"
        return LocalJob(submitted, socket.gethostname(), command, driven=is_command(run))

    def _here(self, run: RunSpec) -> Job:
        function, folder = _function_of(run), str(self._session.run_folder(run.key))
        error = run_here(run_request(run, self._settings, self._session), function, folder)
        return FinishedJob(socket.gethostname(), f"in this process: {function.__name__}({folder!r})", error)

    def _job(self, run: RunSpec) -> Job:
        request = run_request(run, self._settings, self._session)
        try:
            submitted = submit_slurm(self._slurm, request, _function_of(run), str(self._session.run_folder(run.key)))
        except ClusterError as error:
            raise refusal(error, request, self._slurm) from error
        return SlurmJob(submitted, self._slurm)

    def _step(self, run: RunSpec, lease: Lease, job_id: str) -> Job:
        request = run_request(run, self._settings, self._session)
        command = step_command(run, self._settings, self._session, job_id=job_id, hosts=lease.hosts)
        make_folder(request.folder)
        env = clean_environment(self._settings.system.env)
        log = request.folder / "srun.log"
        return StepJob(command, job_id=job_id, hosts=lease.hosts, slurm=self._slurm, env=env, log=log)


def _function_of(run: RunSpec) -> Callable[[str], None]:
    return run_command if is_command(run) else run_rank
