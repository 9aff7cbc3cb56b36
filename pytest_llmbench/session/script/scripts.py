"""The script of a run whose engine is a command: how its ranks start on the nodes, bare or inside an image.

It is started once, on the first node, by `workloads.node.command`, which sets the `LLMBENCH_` variables it uses.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from pytest_llmbench.cluster.containers import inside, srun_options
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.wire.driver import VARIABLES
from pytest_llmbench.core.wire.labels import PRINT
from pytest_llmbench.engines.base import Command, Place, Script

# What a word of a command may use.
_NAME = "(?:" + "|".join(VARIABLES) + "|SLURM_[A-Z_]+)"
_VARIABLE = re.compile(rf"(\${_NAME}(?!\w)|\$\{{{_NAME}\}})")
# Variables that identify a task of srun; an image sees those that are passed on.
_OF_A_TASK = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_NNODES", "SLURM_NODEID",
    "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID",
)  # fmt: skip


def write_script(script: Script, place: Place, topology: Topology, env: Mapping[str, str], title: str = "a run") -> str:
    """Write the bash script of a run; `env` has the system's environment variables, under the environment's own.

    Raises ConfigError if its ranks need srun, which is missing.
    """
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {title}: {topology}, {topology.world_size} ranks. Started once, on the first node.",
            *(f"# {line}" for note in script.notes for line in note.splitlines()),
            "set -euo pipefail",
            *_environment(place.environment, env),
            *(line for command in script.commands for line in ("", _command(command, place, topology, env))),
            "",
        ]
    )


def labels_of(script: Script, place: Place, topology: Topology) -> int:
    """How many nodes print a label: all, where a command is started on each; else one, the driver."""
    spread = any(command.launcher in {"node", "srun", "torchrun"} for command in script.commands)
    return topology.nodes if place.slurm and spread else 1


def _environment(environment: Environment, env: Mapping[str, str]) -> list[str]:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    if environment.env_file is not None:
        # Sourced files are often written for shells that accept unset variables.
        lines += ["set +u", f". {shlex.quote(environment.env_file)}", "set -u"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.env.items()]
    # The value goes from the file straight to the environment, past scripts, logs and records.
    lines += [f'{name}="$(<{shlex.quote(path)})" && export {name}' for name, path in environment.secrets.items()]
    if environment.setup:
        lines += ["set +u", *environment.setup, "set -u"]
    return lines


def _command(command: Command, place: Place, topology: Topology, env: Mapping[str, str]) -> str:
    words = _wrap_container(_launcher_words(command, place, topology), command, place, env)
    return _break_lines(_on_nodes(words, command, place, topology))


def _launcher_words(command: Command, place: Place, topology: Topology) -> list[str]:
    argv = [quote(word) for word in command.argv]
    extra = [quote(word) for word in (*command.launcher_args, *place.environment.launcher_args)]
    if command.shell:
        argv = ["bash", "-c", shlex.quote(command.argv[0])]
    elif command.launcher == "torchrun":
        argv = [*_torchrun(place, topology), *extra, *argv]
    elif command.launcher == "deepspeed":
        argv = ["deepspeed", '--hostfile="$LLMBENCH_HOSTFILE"', *extra, *argv]
    # By `env` instead of export: they are for this command alone.
    changes = [] if command.folder is None else [f"--chdir={shlex.quote(command.folder)}"]
    changes += [f"{name}={quote(value)}" for name, value in command.env.items()]
    return ["env", *changes, *argv] if changes else argv


def _torchrun(place: Place, topology: Topology) -> list[str]:
    # `python -m` in place of `torchrun`: the environment's interpreter, whatever is on PATH.
    words = [*map(shlex.quote, shlex.split(place.environment.python)), "-u", "-m", "torch.distributed.run"]
    words += [f"--nproc_per_node={topology.ranks_per_node}", f"--nnodes={topology.nodes}"]
    # A single node meets at its own address: the suffix is for names in another network.
    suffix = place.environment.rendezvous_suffix if topology.nodes > 1 else ""
    endpoint = f'--rdzv_endpoint="$LLMBENCH_FIRST_HOST"{suffix}:"$LLMBENCH_PORT"'
    return [*words, endpoint, "--rdzv_backend=c10d", "--max_restarts=0"]


def _wrap_container(words: list[str], command: Command, place: Place, env: Mapping[str, str]) -> list[str]:
    container = place.environment.container
    if container is None or command.bare:
        return words
    environment = place.environment
    names = {*env, *environment.env, *environment.secrets, *VARIABLES}
    names |= set(_OF_A_TASK) if command.launcher == "srun" and place.slurm else set()
    return inside(container, words, str(place.folder), sorted(names))


def _on_nodes(words: list[str], command: Command, place: Place, topology: Topology) -> list[str]:
    container = None if command.bare else place.environment.container
    pyxis = container is not None and container.runtime == "pyxis"
    once = command.launcher in {"once", "deepspeed"}
    per_node = topology.ranks_per_node if command.launcher == "srun" else 1
    if not place.slurm and (pyxis or topology.nodes * per_node > 1):
        what = "a container of pyxis" if pyxis else "these ranks"
        raise ConfigError(f"only srun can start {what}, and there is none: run it with --cluster slurm")
    if not place.slurm or (once and not pyxis):
        return words
    nodes = 1 if once else topology.nodes
    return [
        "srun", "--overlap", "--mem=0", "--kill-on-bad-exit=1", "--unbuffered", "--cpu-bind=none",
        f"--nodes={nodes}", '--nodelist="$LLMBENCH_FIRST_HOST"' if once else '--nodelist="$LLMBENCH_HOSTS"',
        f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}",
        *([f"--gpus-per-node={topology.gpus_per_node}"] if topology.gpus_per_node else []),
        *(srun_options(container, str(place.folder)) if container else []),
        *(["sh", "-c", shlex.quote(PRINT), "sh"] if nodes > 1 else []), *words,
    ]  # fmt: skip


def quote(word: str) -> str:
    """Quote a word for a shell, but let it use the variables that a run's script has."""
    pieces = _VARIABLE.split(word)
    quoted = [f'"{piece}"' if index % 2 else piece and shlex.quote(piece) for index, piece in enumerate(pieces)]
    return "".join(quoted) or "''"


def _break_lines(words: list[str], width: int = 110) -> str:
    """Write a long command on several lines; a flag and its value stay on one."""
    lines, line = [], ""
    for words_of_one in _flags(words):
        if line and len(line) + len(words_of_one) + 1 > width:
            lines.append(line)
            line = "    " + words_of_one
        else:
            line = f"{line} {words_of_one}" if line else words_of_one
    return " \\\n".join([*lines, line])


def _flags(words: list[str]) -> Iterator[str]:
    """Yield each flag with the word behind it, which may be its value, and every other word by itself."""
    flag = ""
    for word in words:
        if flag and not word.startswith("-"):
            yield f"{flag} {word}"
            flag = ""
            continue
        if flag:
            yield flag
        flag = word if word.startswith("-") and "=" not in word else ""
        if not flag:
            yield word
    if flag:
        yield flag
