"""Submits jobs through submitit: to Slurm, on this machine, or in this process.

This is the only module that imports submitit, and it does so inside functions to keep collection fast.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.cluster.slurm.commands import (
    NoAnswerError,
    QueueFullError,
    full_queue,
    is_silence,
    plain,
    slurm_words,
)
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.slurm.states import JobIdentity, JobState, OurJob
from pytest_llmbench.cluster.system import visible_gpus
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder, make_private
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.beginning import SUBMITTED, Beginning, job_file

# A job that sbatch has sent off may appear in the queue only after a busy controller has caught up.
_SEARCH_S = 20.0
_SEARCH_PERIOD_S = 2.0
# What submitit replaces wherever it stands in a path.
_TAGS = ("%j", "%t", "%A", "%a")
_BEGIN = "pytest_llmbench.workloads.node.begin"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """The request for a job."""

    name: str
    folder: Path  # submission script, what each job executes, and logs; on a file system all nodes share
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time_min: int  # wall-clock limit, minutes
    comment: str  # written to Slurm; holds the token that finds the job again
    slurm: Mapping[str, str] = field(default_factory=dict)  # further sbatch options by name
    setup: tuple[str, ...] = ()  # shell lines before the tasks start
    srun_args: tuple[str, ...] = ()  # further arguments of srun
    use_srun: bool = True  # whether every task is started by srun; a holder is one process on the first node
    python: str | None = None  # the interpreter on the nodes; by default this one
    outlives_nodes: bool = False  # whether the job goes on when one of its nodes fails

    @property
    def parameters(self) -> dict[str, Any]:
        """The request in submitit's words."""
        # submitit's own default would have Slurm signal the job 90 s before its limit, and our ranks
        # would die of it; CONT, one second before, is harmless and leaves the whole limit to the run.
        extra: dict[str, Any] = {"signal": "CONT@1", "no-requeue": True, "mem": "0"}
        extra |= {name: value for name, value in self.slurm.items() if name == "reservation"}
        extra |= {"no-kill": True} if self.outlives_nodes else {}
        setup, srun_logs = list(self.setup), []
        if _has_percent(self.folder):
            log = f"{str(self.folder).replace('%', '%%')}/%j_0_log"
            extra |= {"output": f"{log}.out", "error": f"{log}.err", "chdir": str(self.folder)}
            # After submitit's own options, so they win; relative to the folder, because Slurm 22.05 replaces some
            # percent signs of a step's log twice.
            srun_logs = ["--output=%j_%t_log.out", "--error=%j_%t_log.err"]
            there, back = (f"cd {shlex.quote(str(path))}" for path in (Path.cwd(), self.folder))
            setup = [there, *setup, back] if setup else setup
        return {
            "job_name": self.name,
            "nodes": self.nodes,
            "ntasks_per_node": self.tasks_per_node if self.use_srun else 1,
            "gpus_per_node": self.gpus_per_node or None,
            "time": self.time_min,
            "comment": self.comment,
            "exclusive": True,  # a measurement has its nodes to itself
            "wckey": None,  # submitit's default is refused where wckeys are enforced
            "setup": setup or None,
            # srun drops the batch job's CPUs per task; without binding, a rank may use all that it can get.
            "srun_args": [*srun_logs, "--mem=0", "--kill-on-bad-exit=1", "--cpu-bind=none", *self.srun_args]
            if self.use_srun
            else None,
            "use_srun": self.use_srun,
            "additional_parameters": extra,
            **{name: value for name, value in self.slurm.items() if name not in {"reservation", "comment"}},
        }

    @property
    def step_logs(self) -> list[str]:
        """Options of an srun from outside of the job: a log for each task, `rank-0.log` and so on."""
        if _has_percent(self.folder):
            return [f"--chdir={self.folder}", f"--output={layout.printed('%t')}"]
        return [f"--output={self.folder}/{layout.printed('%t')}"]

    @property
    def step_setup(self) -> tuple[str, ...]:
        """Shell lines before a task of an srun from outside of the job, run in pytest's working directory."""
        return (f"cd {shlex.quote(str(Path.cwd()))}", *self.setup) if _has_percent(self.folder) else self.setup

    @property
    def shape(self) -> tuple[object, ...]:
        """The parts that decide whether Slurm could ever start such a job."""
        return (
            self.nodes, self.tasks_per_node, self.gpus_per_node, self.time_min, self.use_srun, self.outlives_nodes,
            *sorted((name, value) for name, value in self.slurm.items() if name != "comment"),
        )  # fmt: skip

    @property
    def identity(self) -> JobIdentity:
        """The marks by which the job of this request is recognised in Slurm."""
        return JobIdentity(token=next(iter(self.comment.split()), ""), name=self.name, script=str(self.script))

    @property
    def script(self) -> Path:
        """Script for sbatch; Slurm shows this path also after the file was renamed."""
        return self.folder.absolute() / "submission.sh"

    @property
    def interpreter(self) -> str:
        """The Python of the tasks, quoted for a shell."""
        return shlex.quote(self.python or sys.executable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A job that Slurm has taken."""

    job: OurJob  # the job; a later look at the queue may show that its id is another's
    script: Path
    stderr: Path  # file for the output of the batch script and srun
    note: str = ""  # oddities of the submission, for people


def load() -> None:
    """Import submitit in the caller's thread: the import makes loggers, which pytest goes through in its own."""
    import submitit.slurm.slurm  # noqa: F401, PLC0415


def sbatch_script(request: JobRequest) -> str:
    """The submission script of a request, as submitit writes it, with a beginning of our own."""
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415

    command = f"{request.interpreter} -u -m {_BEGIN} {shlex.quote(str(request.folder))}"
    parameters = {name: value for name, value in request.parameters.items() if value is not None}
    return str(_make_sbatch_string(command=command, folder=request.folder, **parameters, wckey=None))  # type: ignore[arg-type]  # leaves it out


def _has_percent(path: Path) -> bool:
    return "%" in str(path)


def submit_slurm(
    slurm: Slurm, request: JobRequest, function: Callable[..., Any], *args: str | float, seen: bool = False
) -> Accepted:
    """Submit a public function of this package, with texts and numbers, to Slurm, and watch the job.

    Slurm is first asked whether it could ever start such a job: without `EnforcePartLimits` it accepts impossible ones
    and leaves them pending for ever. With `seen`, the queue is read again before the return. Raises NoAnswerError if it
    is unknown whether Slurm took the job, which then stays idle, and ClusterError if Slurm refuses, in its own words.
    """
    folder = request.folder
    make_folder(folder)
    script = request.script
    script.write_bytes(os.fsencode(sbatch_script(request)))
    slurm.controller.test(request.shape, script)
    # Where the folder is the job's own, its tasks begin there; with us, they stand where pytest does.
    here = str(Path.cwd()) if _has_percent(folder) else None
    entry = f"{function.__module__}:{function.__name__}"
    Beginning(entry=entry, arguments=args, folder=here).write(folder / SUBMITTED)
    make_private(folder)
    job, note = _run_sbatch(slurm, request, script, seen=seen)
    return let_begin(request, job, note)


def can_begin(request: JobRequest, job_id: str) -> bool:
    """True if the files are there that a job of an earlier process begins with, or began with."""
    files = (
        (request.folder / SUBMITTED, job_file(request.folder, job_id)),
        (request.script, script_of(request, job_id)),
    )
    return all(any(path.exists() for path in pair) for pair in files)


def script_of(request: JobRequest, job_id: str) -> Path:
    """The script of a job that has an id."""
    return request.folder / f"{job_id}_submission.sh"


def let_begin(request: JobRequest, job: OurJob, note: str = "") -> Accepted:
    """Let a job begin that Slurm has taken. Safe to call twice."""
    folder = request.folder
    script = script_of(request, job.id)
    # A job waits for its file under this name, so only a job whose id reached us begins.
    for path, name in ((folder / SUBMITTED, job_file(folder, job.id)), (request.script, script)):
        if not name.exists():
            path.rename(name)
    return Accepted(job=job, script=script, stderr=folder / f"{job.id}_0_log.err", note=note)


def _run_sbatch(slurm: Slurm, request: JobRequest, script: Path, *, seen: bool) -> tuple[OurJob, str]:
    """Submit a script by sbatch; return the job, which is watched from then on, and a note on anything odd."""
    began = time.monotonic()
    try:
        answer = slurm.queries.ask(["sbatch", "--parsable", str(script)])
    except NoAnswerError as error:
        said, refused = str(error), False
    else:
        job_id = re.search(r"^(\d+)(;.*)?$", answer.stdout, re.MULTILINE)
        if answer.code == 0 and job_id is not None:
            job = slurm.watch(job_id[1], request.identity)
            if seen:
                slurm.refresh()
            if slurm.status(job).state is not JobState.LOST:
                return job, ""
        said = slurm_words(answer.stderr) or plain(answer.stdout)[:200] or "nothing"
        refused = answer.code > 0 and not is_silence(said) and bool(answer.stderr.strip())
    by_token = _search(slurm, request, 0.0 if refused else _SEARCH_S)
    if by_token is not None:
        note = f"sbatch said {said!r}, and Slurm has taken {request.name} as job {by_token.id}: found by its token"
        return by_token, note
    if refused:
        raise slurm.controller.soften_if_just_back(ClusterError(said), began)
    slurm.strays.append(request.identity)
    if limit := full_queue(said):  # sbatch tries again for minutes by itself, and we have ended it
        raise QueueFullError(limit)
    raise NoAnswerError(
        f"it is unknown whether Slurm accepted it: sbatch printed {said!r}, and no job {request.name} with the comment "
        f"{request.identity.token} was found"
    )


def _search(slurm: Slurm, request: JobRequest, patience_s: float) -> OurJob | None:
    """Look for a job by its token for `patience_s` seconds, and watch it."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            job_id = slurm.find(request.identity)
        except ClusterError:
            job_id = None
        if job_id is not None:
            return slurm.watch(job_id, request.identity)
        if min(deadline - time.monotonic(), slurm.queries.left_s / 4) < _SEARCH_PERIOD_S:
            return None
        time.sleep(_SEARCH_PERIOD_S)


def submit_local(request: JobRequest, module: str, folder: str) -> subprocess.Popen[bytes]:
    """Start a module on this machine as a program, once per task, with a folder as its argument.

    Returns submitit's controller of the tasks. It has a session of its own, so that Ctrl-C reaches pytest alone, and
    writes its errors into the folder of their logs.
    """
    gpus = visible_gpus() or tuple(map(str, range(request.gpus_per_node)))
    make_folder(logs := request.folder)
    errors = logs / layout.LAUNCHER
    if any(tag in str(logs) for tag in _TAGS):
        logs = Path(f"/proc/{os.getpid()}/fd/{os.open(logs, os.O_RDONLY)}")  # open as long as this process
    told = {
        "EXECUTOR": "local", "LOCAL_NTASKS": request.tasks_per_node, "LOCAL_JOB_NUM_NODES": 1, "LOCAL_NODEID": 0,
        "LOCAL_COMMAND": f"{request.interpreter} -u -m {module} {shlex.quote(folder)}",
        # A backstop only: the run's own deadline comes first and records the reason.
        "LOCAL_TIMEOUT_S": 60 * (request.time_min + 5), "LOCAL_SIGNAL_DELAY_S": 30,
        "LOCAL_WITH_SHELL": "", "STDERR_TO_STDOUT": "",
    }  # fmt: skip
    env = [f"SUBMITIT_{name}={value}" for name, value in told.items()]
    env.append(f"CUDA_VISIBLE_DEVICES={','.join(gpus[: request.gpus_per_node])}")
    start = shlex.join(("exec", sys.executable, "-m", "submitit.local._local", str(logs)))
    with errors.open("ab") as stderr:
        return subprocess.Popen(
            ("env", *env, "sh", "-c", " && ".join((*request.setup, start))), stderr=stderr, start_new_session=True
        )


def run_here(request: JobRequest, function: Callable[..., Any], *args: object) -> BaseException | None:
    """Run a function in this process and return what it raised; on a terminal, stop in pdb there first."""
    import submitit  # noqa: PLC0415

    job = submitit.DebugExecutor(request.folder).submit(function, *args)
    if not sys.stdin.isatty():
        return job.exception()
    try:
        job.results()
    except Exception as error:  # noqa: BLE001 - whatever the workload raised is the result
        return error
    return None
