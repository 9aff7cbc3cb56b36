"""Starts a run, or a probe of a check: writes its task, then starts its processes on the cluster."""

import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmbench.checks.base import Probe
from pytest_llmbench.cluster.allocation import owner_of, refusal
from pytest_llmbench.cluster.executors import JobRequest, run_here, submit_local, submit_slurm
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job, LocalJob, SlurmJob, StepJob
from pytest_llmbench.cluster.lease import Lease
from pytest_llmbench.cluster.quarantine import remove_bad
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import NoAnswerError, NotYetError, clean_environment
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import OurJob
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import PRIVATE, make_folder, write_text
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, Needed
from pytest_llmbench.core.wire.task import Task
from pytest_llmbench.engines.base import Script
from pytest_llmbench.session.journal.journal import digest_of_plan
from pytest_llmbench.session.script.prepared import PreparedRun, Startable, container_prefix, probe_request, setup_of
from pytest_llmbench.session.script.scripts import labels_of
from pytest_llmbench.workloads.rank.probe import run_probe


@dataclass
class LostNodes:
    """The nodes that Slurm took away from runs because they had failed."""

    settings: Settings
    session: Session
    say: Callable[[str], None]
    names: tuple[str, ...] = ()  # all of them, in the order of their loss
    # Those of each run and of its superseded attempts, by the run's key
    of_run: dict[str, tuple[str, ...]] = field(default_factory=lambda: defaultdict(tuple))

    def take(self, name: str, nodes: Sequence[str]) -> None:
        """Note nodes that a run lost, or `allocation`: later runs avoid them, and the quarantine list gets them."""
        self.of_run[name] = tuple(dict.fromkeys((*self.of_run[name], *nodes)))
        new = {node: f"it failed under {name}" for node in nodes if node not in self.names}
        if not new:
            return
        self.names += tuple(new)
        self.say(f"{', '.join(new)} failed under {name}: later runs of this session avoid it where they can")
        if self.settings.simulate is None:
            for line in remove_bad(new, self.settings, self.session):
                self.say(line)

    def exclude_lost(self, request: JobRequest) -> JobRequest:
        """A request that excludes the nodes lost so far."""
        if not self.names:
            return request
        excluded = ",".join(filter(None, (request.slurm.get("exclude"), *self.names)))
        return replace(request, slurm={**request.slurm, "exclude": excluded})


@dataclass
class Launcher:
    """Starts runs and probes for one session."""

    settings: Settings
    session: Session
    heartbeat: Heartbeat
    slurm: Slurm
    note: Callable[..., None]  # writes events into the session's journal
    lost: LostNodes  # nodes that jobs of runs are kept off

    def start_run(self, run: PreparedRun, lease: Lease | None, holder: OurJob | None) -> Job:
        """Start a run on a lease of the Slurm job `holder`, or as a job of its own (raises ClusterError)."""
        work, topology = run.work, run.topology
        if isinstance(work, Script):
            self._write_script(run, lease, labels_of(work, run.place, topology))
        else:
            task = Task(
                entry=work.entry, config=work.config, nodes=topology.nodes, ranks_per_node=topology.ranks_per_node,
                device=topology.device, env={**work.env, **self.settings.env},
                owner=owner_of(self.settings, self.heartbeat), token=self.session.run_token(run.key),
                may_end_early=run.early is not None and run.early.whole is None, simulate=self.settings.simulate,
            )  # fmt: skip
            write_plain(run.place.folder / layout.TASK, task)
        request = run.processes.request
        own = self.settings.cluster == "slurm" and holder is None
        self.note(
            "submitting", name=run.key, plan=digest_of_plan(run.spec, self.settings), hosts=lease or (),
            **({"job": request.name, "script": str(request.script)} if own else {}),
        )  # fmt: skip
        job = self._start(run.processes, lease or (), holder)
        self.note("submitted", name=run.key, job_id=job.job_id)
        return job

    def start_probe(self, probe: Probe, folder: Path, hosts: Sequence[str], holder: OurJob | None) -> Job:
        """Start a check's probe on nodes of the Slurm job `holder`, or on this machine (raises ClusterError)."""
        task = Task(
            entry=probe.entry, config=probe.config, nodes=len(hosts), ranks_per_node=probe.ranks_per_node,
            device="cuda" if probe.gpus and self.settings.gpus_of_a_node else "cpu", env=self.settings.env,
            owner=owner_of(self.settings, self.heartbeat), simulate=self.settings.lasting_fault,
        )  # fmt: skip
        write_plain(folder / layout.TASK, task)
        request = probe_request(probe, folder, len(hosts), self.settings, self.session)
        # The other nodes answer even if one fails.
        ranks = Startable(request=request, function=run_probe, folder=folder, end_together=False)
        return self._start(ranks, hosts, holder)

    def _write_script(self, run: PreparedRun, lease: Lease | None, labels: int) -> None:
        topology, place, environment = run.topology, run.place, run.place.environment
        container = environment.container
        fault = self.settings.lasting_fault
        env = {**self.settings.system.env, **environment.env, **(fault.env if fault else {})}
        task = CommandTask(
            nodes=topology.nodes,
            ranks_per_node=topology.ranks_per_node,
            device=topology.device,
            token=self.session.run_token(run.key),
            labels=labels,
            # Locally, the name of this host is what the driver finds for itself.
            hosts=lease if lease is not None and place.slurm else (),
            prepare=tuple(Needed(**dict(item)) for item in run.preparations),
            setup=setup_of(environment),
            python=environment.python,
            root=environment.root,
            env=env,
            secrets=environment.secrets,
            image=container.image if container else None,
            mounts=(f"{place.folder}:{place.folder}", *container.mounts) if container else (),
            inside=container_prefix(container, place, {*env, *environment.secrets}) if container else "",
            owner=owner_of(self.settings, self.heartbeat),
        )
        write_plain(place.folder / layout.COMMAND, task)
        write_text(place.folder / layout.SCRIPT, run.script or "", mode=PRIVATE)

    def _start(self, processes: Startable, hosts: Sequence[str], holder: OurJob | None) -> Job:
        request, function, folder = processes.request, processes.function, str(processes.folder)
        called = f"{function.__name__}({folder!r})"
        if self.settings.cluster == "debug":
            return FinishedJob(socket.gethostname(), f"in this process: {called}", run_here(request, function, folder))
        if self.settings.cluster == "local":
            submitted = submit_local(request, function.__module__, folder)
            errors = request.folder / layout.LAUNCHER
            return LocalJob(submitted, f"submitit local: {called}", errors, driven=processes.driven)
        if holder is None:
            return self._submit(request, function, folder)
        make_folder(request.folder)
        command, env = processes.step_command(holder.id, hosts), clean_environment(self.settings.system.env)
        log = request.folder / layout.SRUN
        return StepJob(command, holder=holder, hosts=tuple(hosts), slurm=self.slurm, env=env, log=log)

    def _submit(self, request: JobRequest, function: Callable[[str], None], folder: str) -> SlurmJob:
        """Submit a job of its own, on other nodes than those that were lost, if Slurm has enough of them."""
        kept_off = self.lost.exclude_lost(request)
        try:
            try:
                accepted = submit_slurm(self.slurm, kept_off, function, folder)
            except ClusterError as error:
                if kept_off is request or isinstance(error, NoAnswerError | NotYetError):
                    raise
                lost = ", ".join(self.lost.names)
                self.lost.say(f"{request.name} may get {lost} again: there are too few other nodes ({error})")
                accepted = submit_slurm(self.slurm, request, function, folder)
        except ClusterError as error:
            raise refusal(error, request, self.slurm) from error
        return SlurmJob(accepted, self.slurm)
