"""Submitting through submitit: Slurm, this machine, or this very process. Nothing else imports submitit.

It is imported where it is used: a session that only collects tests must not pay for it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.cluster.slurm import run, slurm_words
from pytest_llmbench.core.errors import ClusterError

if TYPE_CHECKING:
    import submitit


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What a job asks for.

    Attributes:
        name: job name.
        folder: submission script, pickles and logs; on a file system all nodes share.
        nodes, tasks_per_node, gpus_per_node: its shape.
        time_min: wall-clock limit, minutes.
        comment: written to Slurm; holds the token that finds the job again.
        slurm: further sbatch options by name.
        setup: shell lines before the tasks start.
        srun_args: further arguments of srun.
        use_srun: whether every task is started by srun; a holder is one process on the first node.
        python: the interpreter on the nodes; by default this one.
        outlives_nodes: whether the job goes on when one of its nodes fails.
    """

    name: str
    folder: Path
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time_min: int
    comment: str
    slurm: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    use_srun: bool = True
    python: str | None = None
    outlives_nodes: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """The request in submitit's words."""
        # submitit's own default would have Slurm signal the job 90 s before its limit, and our ranks
        # would die of it; CONT, one second before, is harmless and leaves the whole limit to the run.
        extra: dict[str, Any] = {"signal": "CONT@1", "no-requeue": True, "mem": "0"}
        extra |= {name: value for name, value in self.slurm.items() if name == "reservation"}
        extra |= {"no-kill": True} if self.outlives_nodes else {}
        return {
            "job_name": self.name,
            "nodes": self.nodes,
            "ntasks_per_node": self.tasks_per_node if self.use_srun else 1,
            "gpus_per_node": self.gpus_per_node or None,
            "time": self.time_min,
            "comment": self.comment,
            "exclusive": True,  # a measurement shares its nodes with nobody
            "wckey": None,  # submitit's default is refused where wckeys are enforced
            "setup": list(self.setup) or None,
            # srun does not take the batch job's CPUs per task over; a rank may use all it can get.
            "srun_args": ["--mem=0", "--kill-on-bad-exit=1", "--cpu-bind=none", *self.srun_args]
            if self.use_srun
            else None,
            "use_srun": self.use_srun,
            "additional_parameters": extra,
            **{name: value for name, value in self.slurm.items() if name not in {"reservation", "comment"}},
        }

    @property
    def interpreter(self) -> str:
        """The Python of the tasks, quoted for a shell."""
        return shlex.quote(self.python or sys.executable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job that was accepted.

    Attributes:
        job_id: Slurm's id; locally the process id of submitit's controller.
        script: the submission script, on Slurm.
        job: submitit's handle.
    """

    job_id: str
    script: Path | None
    job: submitit.Job[Any]


def load() -> None:
    """Import submitit now, in the caller's thread.

    Left to the first submission, it would be imported by the runner's thread, and the loggers it makes
    could meet pytest walking over all loggers at the start of a test ("dictionary changed size during
    iteration").
    """
    import submitit.core.utils  # noqa: PLC0415
    import submitit.slurm.slurm  # noqa: F401, PLC0415


def sbatch_script(request: JobRequest) -> str:
    """The submission script of a request, exactly as submitit will hand it to sbatch."""
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415

    command = f"{request.interpreter} -u -m submitit.core._submit {shlex.quote(str(request.folder))}"
    parameters = {name: value for name, value in request.parameters.items() if value is not None}
    return str(_make_sbatch_string(command=command, folder=request.folder, **parameters, wckey=None))  # type: ignore[arg-type]  # leaves it out


def submit_slurm(request: JobRequest, function: Callable[..., Any], *args: object) -> Submitted:
    """Submit a function to Slurm.

    Slurm is first asked whether it could ever start the job, because without `EnforcePartLimits` it
    accepts one that cannot and leaves it pending for ever.

    Raises:
        ClusterError: Slurm refuses, in its own words.
    """
    import submitit  # noqa: PLC0415
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    request.folder.mkdir(parents=True, exist_ok=True)
    probe = request.folder / "test_only.sh"
    probe.write_text(sbatch_script(request), encoding="utf-8")
    run(["sbatch", "--test-only", str(probe)])
    probe.unlink()
    executor = submitit.SlurmExecutor(request.folder, max_num_timeout=0, python=request.interpreter)
    executor.update_parameters(**request.parameters)
    try:
        job = executor.submit(function, *args)
    except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
        raise ClusterError(slurm_words(str(error)), command="sbatch") from error
    return Submitted(job_id=job.job_id, script=job.paths.submission_file, job=job)


def submit_local(request: JobRequest, function: Callable[..., Any], *args: object) -> Submitted:
    """Start a function on this machine, once per task."""
    import submitit  # noqa: PLC0415

    executor = submitit.LocalExecutor(request.folder, max_num_timeout=0, python=request.interpreter)
    executor.update_parameters(
        nodes=1,
        tasks_per_node=request.tasks_per_node,
        gpus_per_node=request.gpus_per_node,
        # A backstop only: the run's own deadline comes first and can say why.
        timeout_min=request.time_min + 5,
        setup=list(request.setup),
    )
    job = _submitted(executor, function, *args)
    return Submitted(job_id=job.job_id, script=None, job=job)


def _submitted(executor: submitit.LocalExecutor, function: Callable[..., Any], *args: object) -> submitit.Job[Any]:
    """Submit, however often pytest takes a variable of its own away while submitit copies the environment.

    It does so in another thread, at each phase of each test; submitit starts nothing before it has its copy.
    """
    while True:
        try:
            return executor.submit(function, *args)
        except KeyError as error:
            if not str(error.args[0]).startswith("PYTEST_"):
                raise


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
