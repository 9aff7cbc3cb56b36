"""The diagnostic of a node: `dcgmi diag`, bare or in a container."""

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import model_validator

from pytest_llmbench.core.errors import RunError
from pytest_llmbench.core.recipe.environments import MOUNT_FLAGS, Container, Environment
from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.processes import ask
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_KEPT_ERRORS = 10_000


class DiagnosticOutput(ProbeAnswer):
    """The raw output of a diagnostic."""

    command: str
    code: int | None  # its exit status; None when it was ended at its limit
    seconds: float
    stdout: str
    stderr: str


class DiagnosticRun(ProbeAnswer):
    """The diagnostic of a node."""

    missing: str | None  # a missing program, in words; None if it ran
    output: DiagnosticOutput | None  # None if a program is missing

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.missing is None) == (self.output is None):
            raise ValueError("either `missing` or `output` has to be there")
        return self


def dcgm(context: RankContext, log: ProbeLog) -> DiagnosticRun:
    """Run the diagnostic.

    `config` has `words`, the command from `dcgmi` on; `environment`, an `Environment` or None; and `limit_s`. Raises
    RunError for a pyxis container outside of a Slurm job.
    """
    given = context.config["environment"]
    environment = Environment.model_validate(given) if given is not None else Environment()
    # dcgmi ignores this variable, and warns of it.
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | dict(environment.env)
    outer = _wrap(environment, env)
    program = outer[0] if outer else context.config["words"][0]
    if shutil.which(program, path=env.get("PATH")) is None:
        missing = f"{program} is not installed: it is not on PATH {env.get('PATH', '')}"
        return DiagnosticRun(missing=missing, output=None)
    command = [*outer, *context.config["words"], "-j"]
    log.phase(shlex.join(command))
    began = time.monotonic()
    result = ask(command, env, context.config["limit_s"], apart=True)  # its warnings stay out of its JSON
    output = DiagnosticOutput(
        command=shlex.join(command), code=result.code, seconds=time.monotonic() - began, stdout=result.text,
        stderr=result.errors[-_KEPT_ERRORS:],
    )  # fmt: skip
    return DiagnosticRun(missing=None, output=output)


def _wrap(environment: Environment, env: dict[str, str]) -> list[str]:
    """The words before those of the diagnostic: shell lines of the environment, and the start of its container."""
    words = _inside(environment.container, environment.env, env) if environment.container is not None else []
    lines = [*environment.setup, *([f". {shlex.quote(environment.env_file)}"] if environment.env_file else [])]
    return ["bash", "-c", "\n".join([*lines, 'exec "$@"']), "setup", *words] if lines else words


def _inside(container: Container, names: Mapping[str, str], env: dict[str, str]) -> list[str]:
    """The words that run a command in a container on this node, with all of its GPUs.

    Profiling counters and the power limit need the capability SYS_ADMIN.
    """
    if container.runtime == "pyxis":
        return _pyxis(container, env)
    # The system's file names an existing enroot container.
    start = {
        "docker": ["docker", "run", "--rm", "--init", "--gpus=all", "--cap-add=SYS_ADMIN"],
        "enroot": ["enroot", "start", "--rw"],
        "apptainer": ["apptainer", "exec", "--nv", *([] if container.mount_home else ["--no-home"])],
    }[container.runtime]
    mount, folder = MOUNT_FLAGS[container.runtime], {"docker": "--workdir", "apptainer": "--pwd"}
    home = f"{Path.home()}:{Path.home()}" if container.mount_home and container.runtime != "apptainer" else None
    given = [] if container.runtime == "apptainer" else [word for name in names for word in ("--env", name)]
    workdir = (
        [folder[container.runtime], container.workdir] if container.workdir and container.runtime in folder else []
    )
    return [
        *start, *(word for place in (*container.mounts, *([home] if home else [])) for word in (mount, place)), *given,
        *workdir, *container.args, container.image,
    ]  # fmt: skip


def _pyxis(container: Container, env: dict[str, str]) -> list[str]:
    """A step on this node alone, next to the step of this process."""
    if "SLURM_JOB_ID" not in env:  #: error no_slurm: Check: a pyxis container outside of a Slurm job
        raise RunError(
            "no_slurm", "a pyxis container starts with srun, and this is not a Slurm job: use another runtime"
        )
    job, host = env["SLURM_JOB_ID"], host_name()
    for name in list(env):
        if name.startswith(("SLURM_", "SLURMD_", "PMI")) and name != "SLURM_CONF":
            del env[name]  # else they are options of the new step
    return [
        "srun", f"--jobid={job}", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", f"--nodelist={host}",
        f"--container-image={container.image}",
        *([f"--container-mounts={','.join(container.mounts)}"] if container.mounts else []),
        *([f"--container-workdir={container.workdir}"] if container.workdir else []),
        "--container-mount-home" if container.mount_home else "--no-container-mount-home", *container.args,
    ]  # fmt: skip
