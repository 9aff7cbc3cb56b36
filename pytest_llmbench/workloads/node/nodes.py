"""The nodes of a command's run: their names and GPUs, and an srun that is limited to them."""

import os
import re
import shlex
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.core.wire.driver import Obstacle
from pytest_llmbench.workloads.node.processes import ask

_TIMEOUT_S = 60.0
# A line of a task under `srun --label`; srun itself may print warnings between.
_LABELLED = re.compile(r"^ *(\d+): (.*)$", re.MULTILINE | re.ASCII)
# Variables of the driver's own step or task: an srun that it starts would take them for its own.
_OF_A_STEP = (
    "SLURM_STEP", "SLURM_TASK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_CPU_BIND",
    "SLURM_MEM_", "SLURM_DISTRIBUTION", "SLURM_LAUNCH_", "SLURM_SRUN_", "SLURM_UMASK", "SLURM_NPROCS", "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_TRES_PER_TASK", "PMI", "SUBMITIT",
)  # fmt: skip


def in_slurm(environ: Mapping[str, str]) -> bool:
    """True if the run has nodes from Slurm; False for a local run, even inside a Slurm job."""
    return "SLURM_JOB_ID" in environ and environ.get("SUBMITIT_EXECUTOR") != "local"


def hosts_of_this_job() -> tuple[str, ...]:
    """The nodes of the Slurm job that this process is in; this machine, outside of one.

    Raises ClusterError if `scontrol` fails.
    """
    if not in_slurm(os.environ):
        return (socket.gethostname(),)
    command = ["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]
    answer = ask(command, os.environ, _TIMEOUT_S, apart=True)
    if answer.code != 0:
        raise ClusterError(f"{shlex.join(command)} ended with status {answer.code}")
    return tuple(answer.text.split())


def environment_of(
    environ: Mapping[str, str], hosts: tuple[str, ...], ranks_per_node: int, folder: Path
) -> dict[str, str]:
    """The environment of a batch script whose job had just these nodes, for launchers that read it.

    Outside of Slurm it is left as it is.
    """
    env = {name: value for name, value in environ.items() if not name.startswith(_OF_A_STEP)}
    if not in_slurm(environ):
        return env
    nodes, nodelist, ranks = str(len(hosts)), ",".join(hosts), str(len(hosts) * ranks_per_node)
    env |= {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NODELIST": nodelist, "SLURM_JOB_NODELIST": nodelist,
        "SLURM_NTASKS": ranks, "SLURM_NPROCS": ranks, "SLURM_NTASKS_PER_NODE": str(ranks_per_node),
    }  # fmt: skip
    return _with_srun(folder, env)


def _with_srun(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """Put an `srun` first on PATH that stays on the run's own nodes.

    A framework's own launcher calls srun as if it had the whole job. The run may have a part of it, and this process
    may be a step of it already, so its steps have to share the nodes (`--overlap`) and name them.
    """
    srun = shutil.which("srun", path=env.get("PATH"))
    if srun is None:
        return env
    wrapper = folder / "bin" / "srun"
    text = f'#!/bin/sh\nexec {shlex.quote(srun)} --overlap --mem=0 --nodelist="$LLMBENCH_HOSTS" "$@"\n'
    write_text(wrapper, text)
    wrapper.chmod(0o700)
    return env | {"PATH": f"{wrapper.parent}{os.pathsep}{env['PATH']}"}


def gpus_of(hosts: tuple[str, ...], wanted: int, env: Mapping[str, str]) -> tuple[str, Obstacle | None]:
    """Return the GPU model of all nodes, and a problem if a node has too few GPUs or another model."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if len(hosts) > 1:
        per_node = [f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1"]
        query = ["srun", *per_node, "--label", "--cpu-bind=none", *query]
    try:
        answer = ask(query, env, _TIMEOUT_S)
    except OSError as error:
        return "unknown", Obstacle(kind="wrong_hardware", message=f"{shlex.join(query)}: {error}")
    lines = [("0", line) for line in answer.text.splitlines()] if len(hosts) == 1 else _LABELLED.findall(answer.text)
    names = sorted({name.strip() for _, name in lines if name.strip()})
    if answer.code != 0 or not names:
        words = answer.last_line or "it printed nothing"
        return "unknown", Obstacle(kind="wrong_hardware", message=f"{shlex.join(query)} failed: {words}")
    if len(names) > 1:
        return names[0], Obstacle(kind="wrong_hardware", message=f"the nodes have different GPUs: {', '.join(names)}")
    there = Counter(node for node, _ in lines)
    fewest = min(there.values()) if len(there) == len(hosts) else 0
    if fewest < wanted:  #: problem wrong_hardware: nodes with too few GPUs
        message = f"a node has {fewest} GPUs ({names[0]}); the run needs {wanted} on each of {', '.join(hosts)}"
        return names[0], Obstacle(kind="wrong_hardware", message=message)
    return names[0], None
