"""Runs NVIDIA's nccl-tests on a node and brings back its output."""

import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.schema import Strict, validate
from pytest_llmbench.core.wire.answers import NcclLines, ProbeAnswer
from pytest_llmbench.workloads.node.nodes import environment_of, gpus_of
from pytest_llmbench.workloads.node.processes import ask
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.nccl_lines import PRINTED, read_output
from pytest_llmbench.workloads.rank.probe import ProbeLog, host_name

_HELP_S = 60.0
_NOT_FOUND = 127  # as in a shell
_LONGEST = 100_000


class NcclTestsCommand(Strict):
    """The programs to run.

    `launcher` starts a rank per GPU on several nodes; `{nodes}`, `{ranks}`, `{gpus}` (of a node) and `{hosts}` are
    filled in. Without one, one process drives all GPUs of this node.
    """

    root: str  # the folder of the programs, or the checkout that has them in `build`
    collectives: tuple[str, ...]  # the operations; the program of `all_reduce` is `all_reduce_perf`
    args: tuple[str, ...]
    hosts: tuple[str, ...]  # the nodes, this one first
    gpus: PositiveInt  # of every node
    launcher: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()  # shell lines before a program
    env: Mapping[str, str] = {}  # its further environment variables
    timeout_s: PositiveFloat  # longest duration of each program
    nccl: bool = False  # whether NCCL prints its lines, which slows the measurement


class NcclTestsOutput(ProbeAnswer):
    """The output of a program."""

    command: str
    code: int | None  # its exit status; None when it took too long
    text: str
    written: str | None  # the file that it wrote with `-J`, which older versions lack


class NcclTestsOutputs(ProbeAnswer):
    """The outputs by collective, and the GPU model, or `unknown`."""

    device: str
    runs: Mapping[str, NcclTestsOutput]
    nccl: NcclLines | None = None  # NCCL's lines, where they were asked for


def run(context: RankContext, log: ProbeLog) -> NcclTestsOutputs:
    """Run a `NcclTestsCommand`."""
    command = validate(NcclTestsCommand, context.config, "nccl-tests")
    device, _ = gpus_of((host_name(),), command.gpus, os.environ)
    runs: dict[str, NcclTestsOutput] = {}
    lines: list[str] = []
    for collective in command.collectives:
        log.phase(f"{collective}_perf")
        runs[collective] = _run(command, f"{collective}_perf", context.folder, lines)
    nccl = read_output(lines, {**os.environ, **command.env}) if command.nccl else None
    if nccl is not None and not command.launcher:  # its ranks are of this process, and may run where it may
        nccl = nccl.model_copy(update={"cores": tuple(sorted(os.sched_getaffinity(0)))})
    return NcclTestsOutputs(device=device, runs=runs, nccl=nccl)


def _run(command: NcclTestsCommand, name: str, folder: Path, lines: list[str]) -> NcclTestsOutput:
    places = [Path(command.root) / name, Path(command.root) / "build" / name]
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    if program is None:
        text = f"neither {places[0]} nor {places[1]} can be run"
        return NcclTestsOutput(command=name, code=_NOT_FOUND, text=text, written=None)
    env = environment_of(os.environ, command.hosts, command.gpus, folder)
    env |= {"LLMBENCH_HOSTS": ",".join(command.hosts), **command.env, **(PRINTED if command.nccl else {})}
    help_text = ask(_with_setup(command, [str(program), "-h"]), env, _HELP_S).text
    with tempfile.TemporaryDirectory() as private:  # the file holds the environment, which is private
        file = Path(private) / "result.json"
        argv = [*_launch(command, program), *command.args, *(["-J", str(file)] if "-J," in help_text else [])]
        answer = ask(_with_setup(command, argv), env, command.timeout_s)
        written = _without_environment(file)
    lines += answer.text.splitlines()
    return NcclTestsOutput(command=shlex.join(argv), code=answer.code, text=answer.text[-_LONGEST:], written=written)


def _launch(command: NcclTestsCommand, program: Path) -> list[str]:
    if not command.launcher:
        return [str(program), "-g", str(command.gpus)]
    nodes = len(command.hosts)
    names = {"nodes": nodes, "ranks": nodes * command.gpus, "gpus": command.gpus, "hosts": ",".join(command.hosts)}
    return [*(part.format_map(names) for part in command.launcher), str(program), "-g", "1"]


def _with_setup(command: NcclTestsCommand, argv: Sequence[str]) -> list[str]:
    if not command.setup:
        return list(argv)
    return ["bash", "-c", "\n".join(["set -e", *command.setup, 'exec "$@"']), "bash", *argv]


def _without_environment(file: Path) -> str | None:
    try:
        data = read_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    if isinstance(data, dict):
        data.pop("env", None)
    return json.dumps(data)
