"""Runs the script of a command's run on its first node: `python -m pytest_llmbench.workloads.node.command FOLDER`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from types import FrameType

from pytest_llmbench.core.files import make_folder, write_text
from pytest_llmbench.core.plain import write_plain
from pytest_llmbench.core.unix_clock import UnixClock
from pytest_llmbench.core.wire import layout
from pytest_llmbench.core.wire.driver import CommandTask, DriverReport, Obstacle
from pytest_llmbench.core.wire.foreign import mark_of
from pytest_llmbench.core.wire.labels import VARIABLE, Label
from pytest_llmbench.core.wire.notes import note_pause, note_second_start
from pytest_llmbench.workloads.node import machine_lock
from pytest_llmbench.workloads.node.nodes import environment_of, gpus_of, hosts_of_this_job, in_slurm
from pytest_llmbench.workloads.node.prepared import first_missing
from pytest_llmbench.workloads.node.processes import end_marked, leave, started
from pytest_llmbench.workloads.node.provenance import Gathered, gather
from pytest_llmbench.workloads.node.secret_filter import environment, secret_values
from pytest_llmbench.workloads.node.stacks import Answering, describe_marked
from pytest_llmbench.workloads.rank import deadman

OWNER_GONE = 75
# EX_CANTCREAT of sysexits.h: another start of the same run was here.
STARTED_AGAIN = 73


def run_command(folder: str) -> None:
    """Run a run's script, and report how it ended in `driver.json`. Its output goes to `logs/output.log`.

    The whole process group of the script is ended with it. The process ends with status 75 when the run's owner goes
    away, with 128 + its number on a signal, and with 73, before any change of the folder, if an earlier start reported.
    """
    _Driver(Path(folder)).run()


class _Driver:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._task = CommandTask.read(folder / layout.COMMAND)
        self._owner_gone = False
        self._locks = machine_lock.hold(self._task.owner.machine_lock if self._task.owner is not None else None)

    def run(self) -> None:
        """Run the script; see `run_command`."""
        task = self._task
        if (self._folder / layout.DRIVER).exists():
            note_second_start(self._folder, "its driver")
            raise SystemExit(STARTED_AGAIN)
        if task.owner is not None:  # else this is the process of pytest, which has handlers of its own
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
            answering = Answering(self._folder, layout.PROCESSES, self._stacks)
            noted = partial(note_pause, self._folder, "driver")
            deadman.watch(task.owner.path, task.owner.ttl_s, self._on_silence, noted, answering.look)
        hosts = task.hosts or hosts_of_this_job()
        env = self._environment(hosts)
        device, problem = _look_at(task, hosts, env)
        known = Gathered({}, secret_values(environment(task, env), task.secrets)) if problem else gather(task, env)
        clock = UnixClock()
        report = DriverReport(
            hosts=hosts, device=device, provenance=known.facts,
            secrets=tuple(mark_of(value) for value in known.secrets), problem=problem, started=clock.now(),
        )  # fmt: skip
        write_plain(self._folder / layout.DRIVER, report)
        if problem is not None:
            return
        code = self._run_script(env, self._label(hosts, report.started))
        write_plain(self._folder / layout.DRIVER, replace(report, ended=clock.now(), exit_code=code))

    def _label(self, hosts: tuple[str, ...], launched: float) -> Label | None:
        """Build the first lines of the log; None for a run without a token."""
        if self._task.token is None:
            return None
        here = os.environ.get("SLURMD_NODENAME") if in_slurm(os.environ) else hosts[0]
        host = here or socket.gethostname()
        return Label(token=self._task.token, launched=round(launched, 3), of=self._task.labels, host=host)

    def _run_script(self, env: Mapping[str, str], label: Label | None) -> int:
        script = ["bash", str(self._folder / layout.SCRIPT)]
        labelled = {} if label is None else {VARIABLE: label.beginning}
        try:
            with (
                self._output(label) as output,
                started(
                    script,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env={**env, **labelled},
                    pass_fds=self._locks,
                ) as process,
            ):
                return process.wait()
        finally:
            end_marked("LLMBENCH_HOSTFILE", env["LLMBENCH_HOSTFILE"])

    def _output(self, label: Label | None) -> FileIO:
        """Open the log and write its label; on a full disk the label is left out, and the script reports the error."""
        output = FileIO(self._folder / layout.OUTPUT, "w")
        with suppress(OSError):
            output.write(b"" if label is None else f"{label}\n".encode())
        return output

    def _environment(self, hosts: tuple[str, ...]) -> dict[str, str]:
        """Build the script's environment, in addition to its own settings."""
        hostfile = self._folder / layout.HOSTFILE
        write_text(hostfile, "".join(f"{host} slots={self._task.ranks_per_node}\n" for host in hosts))
        make_folder(self._folder / layout.LOGS)
        return environment_of(os.environ, hosts, self._task.ranks_per_node, self._folder) | {
            # All of them are in the environment of a command's script and its ranks.
            "LLMBENCH_HOSTS": ",".join(hosts),  #: variable LLMBENCH_HOSTS: the run's nodes, separated by commas
            "LLMBENCH_HOSTFILE": str(hostfile),  #: variable LLMBENCH_HOSTFILE: a file of them, `host slots=N` a line
            #: variable LLMBENCH_FIRST_HOST: the first of them, at which ranks meet; `127.0.0.1` outside of Slurm
            # Outside of Slurm the name of a machine may resolve to another address.
            "LLMBENCH_FIRST_HOST": hosts[0] if in_slurm(os.environ) else "127.0.0.1",
            "LLMBENCH_PORT": str(_free_port()),  #: variable LLMBENCH_PORT: a free port of the first node
        }

    def _stacks(self) -> str:
        mark = ("LLMBENCH_HOSTFILE", str(self._folder / layout.HOSTFILE))
        return describe_marked(mark, os.environ, secret_values(environment(self._task, os.environ), self._task.secrets))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        for ignored in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)  # a second one would interrupt the end of the started programs
        leave(OWNER_GONE if self._owner_gone else 128 + number)

    def _on_silence(self, _why: str) -> None:
        self._owner_gone = True
        os.kill(os.getpid(), signal.SIGTERM)  # to the main thread, which has something to end


def _look_at(task: CommandTask, hosts: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, Obstacle | None]:
    if len(hosts) != task.nodes:
        message = f"the run asks for {task.nodes} nodes and finds {len(hosts)}: {', '.join(hosts)}"
        return "unknown", Obstacle(kind="wrong_nodes", message=message)
    device, problem = ("cpu", None) if task.device == "cpu" else gpus_of(hosts, task.ranks_per_node, env)
    return device, problem or first_missing(task, env)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    run_command(sys.argv[1])
