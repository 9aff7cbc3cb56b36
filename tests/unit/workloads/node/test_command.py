"""The driver of a command: real processes, ended with everything they started, and a report of how."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.wire.driver import DriverReport, read_report
from pytest_llmbench.core.wire.notes import second_start
from pytest_llmbench.engines.base import Command, Place, Script
from pytest_llmbench.readers.log import read_log
from pytest_llmbench.session.script.scripts import labels_of, write_script
from pytest_llmbench.workloads.node.command import OWNER_GONE, STARTED_AGAIN, run_command
from tests.conftest import known
from tests.support.waiting import wait_until

# A child, and a grandchild in a session of its own, that leave their ids behind.
FAMILY = """
setsid bash -c 'echo $$ > grandchild; exec sleep 1000' &
bash -c 'echo $$ > child; exec sleep 1000' &
echo started
wait
"""
Drive = Callable[..., "subprocess.Popen[bytes]"]


def prepare(folder: Path, script: str, **task: Any) -> None:
    """Write the run's folder: one CPU rank, and an owner that gave one sign of life."""
    (folder / "owner").write_text("0\n")
    owner = {"path": str(folder / "owner"), "ttl_s": 30.0}
    shape = {"nodes": 1, "ranks_per_node": 1, "device": "cpu", "python": sys.executable, "owner": owner}
    (folder / "command.json").write_text(json.dumps({**shape, **task}))
    (folder / "run.sh").write_text(script)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Start the driver of a run as a process of its own."""
    with ExitStack() as started:

        def start(script: str, env: dict[str, str] | None = None, **task: Any) -> subprocess.Popen[bytes]:
            prepare(tmp_path, script, **task)
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "pytest_llmbench.workloads.node.command", str(tmp_path)],
                    env={**clean(), **(env or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                )
            )  # fmt: skip
            started.callback(process.kill)
            return process

        yield start


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}


def report(folder: Path) -> DriverReport:
    return known(read_report(folder))


def output(folder: Path) -> str:
    return (folder / "logs" / "output.log").read_text()


def family(folder: Path) -> list[int]:
    """The ids of child and grandchild, once both are there."""
    files = [folder / "child", folder / "grandchild"]
    wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


def gone(pids: list[int]) -> bool:
    """Whether processes end; one that nobody has waited for yet has. One that was killed may take a moment to go."""
    deadline = time.monotonic() + 10
    while any(state(pid) not in {"", "Z"} for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def state(pid: int) -> str:
    """A process's state by the kernel's letter, empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_its_log_begins_with_the_runs_label(drive: Drive, tmp_path: Path) -> None:
    process = drive('echo "$LLMBENCH_LABEL"', token="llmbench:s/tiny", labels=3)
    assert process.wait(timeout=60) == 0
    launched, host = f"{report(tmp_path).started:.3f}", report(tmp_path).hosts[0]
    label = f"#llmbench run=llmbench:s/tiny launched={launched} of=3"
    assert output(tmp_path).splitlines()[:2] == [f"{label} host={host} #", label]
    (tmp_path / "driver.json").unlink()
    assert drive("echo whole").wait(timeout=60) == 0
    assert output(tmp_path) == "whole\n"


def test_a_second_start_touches_nothing_of_the_first(drive: Drive, tmp_path: Path) -> None:
    """A controller that forgot the first start begins it again: log and report stay, and the refusal is on disk."""
    assert drive("echo first").wait(timeout=60) == 0
    before = report(tmp_path)
    assert drive("echo second").wait(timeout=60) == STARTED_AGAIN
    assert (output(tmp_path), report(tmp_path)) == ("first\n", before)
    assert (second_start(tmp_path) or "").startswith("its driver on ")


# A stand-in for Slurm's, which runs a task on each of two nodes.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for node in n1 n2; do
    SLURMD_NODENAME=$node SLURM_LOCALID=0 "$@"
    SLURMD_NODENAME=$node SLURM_LOCALID=1 "$@"
done
"""


@pytest.mark.parametrize(("launcher", "said"), [("torchrun", ["n1", "n2"]), ("once", ["n1"])])
def test_every_node_with_a_process_of_the_run_labels_its_log(
    drive: Drive, tmp_path: Path, launcher: Literal["torchrun", "once"], said: list[str]
) -> None:
    """The script of two nodes, by the driver on the first of them: the gate asks for as many labels as there are."""
    nodes = Topology(nodes=2, gpus_per_node=0, cpu_ranks_per_node=2)
    place = Place(folder=tmp_path, environment=Environment(python="echo"), slurm=True, time_limit_min=5)
    script = Script(commands=(Command(launcher=launcher, argv=("echo", "trained")),))
    path = tmp_path / "path" / "srun"
    path.parent.mkdir()
    path.write_text(SRUN)
    path.chmod(0o755)
    env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}"}
    told = {"token": "llmbench:s/tiny", "labels": labels_of(script, place, nodes), "hosts": ["n1", "n2"], "nodes": 2}
    assert drive(write_script(script, place, nodes, {}), env, **told).wait(timeout=60) == 0
    series = read_log([tmp_path / "logs" / "output.log"], lambda _: ())
    assert [label.host for label in series.labels] == said
    assert {(label.token, label.of) for label in series.labels} == {("llmbench:s/tiny", len(said))}


def test_a_script_runs_and_its_end_is_reported(drive: Drive, tmp_path: Path) -> None:
    """Output and errors in one file, the exit code, the host, and what the script finds in its environment."""
    script = 'echo "to $LLMBENCH_HOSTS, $LLMBENCH_FIRST_HOST"; cat "$LLMBENCH_HOSTFILE"; echo oops >&2; pwd; exit 7'
    process = drive(script, ranks_per_node=4)
    assert process.wait(300) == 0
    host = os.uname().nodename
    assert output(tmp_path) == f"to {host}, 127.0.0.1\n{host} slots=4\noops\n{tmp_path}\n"
    told = report(tmp_path)
    assert (told.exit_code, told.hosts, told.device, told.problem) == (7, (host,), "cpu", None)
    assert told.ended is not None
    assert told.ended >= told.started
    assert told.provenance["python"]
    assert not (tmp_path / "bin").exists()


@pytest.mark.parametrize(("number", "code", "script"), [
    (signal.SIGTERM, 143, f"trap '' TERM\n{FAMILY}"),
    (signal.SIGINT, 130, FAMILY),
], ids=["SIGTERM", "SIGINT"])  # fmt: skip
def test_a_signal_ends_all_of_it(drive: Drive, tmp_path: Path, number: signal.Signals, code: int, script: str) -> None:
    process = drive(script)
    pids = family(tmp_path)
    process.send_signal(number)
    assert process.wait(300) == code
    assert gone(pids)
    assert report(tmp_path).exit_code is None


@pytest.mark.parametrize("silence", ["silent", "stop"])
def test_without_its_owner_it_ends(drive: Drive, tmp_path: Path, silence: str) -> None:
    """The dead man's switch: nobody rewrites the file, or somebody asks for the end."""
    process = drive(FAMILY, owner={"path": str(tmp_path / "owner"), "ttl_s": 1.0 if silence == "silent" else 600.0})
    if silence == "stop":
        pids = family(tmp_path)
        (tmp_path / "stop").write_text("")
        assert process.wait(300) == OWNER_GONE
        assert gone(pids)
    assert process.wait(300) == OWNER_GONE


def test_a_check_that_takes_long_is_ended_too(drive: Drive, tmp_path: Path) -> None:
    slow = {"name": "slow", "check": f"echo $$ > {tmp_path}/check; sleep 1000", "make": "nothing"}
    process = drive("echo never", prepare=[slow])
    wait_until(lambda: (tmp_path / "check").exists() and (tmp_path / "check").read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    assert gone([int((tmp_path / "check").read_text())])
    assert read_report(tmp_path) is None
    assert not (tmp_path / "logs" / "output.log").exists()


def test_what_a_script_leaves_behind_is_ended(drive: Drive, tmp_path: Path) -> None:
    process = drive(FAMILY.replace("wait\n", "until test -s child && test -s grandchild; do sleep 0.05; done\n"))
    assert process.wait(300) == 0
    assert report(tmp_path).exit_code == 0
    assert gone(family(tmp_path))


@pytest.mark.parametrize(("task", "kind", "said"), [
    ({"prepare": [{"name": "corpus", "path": "/no/corpus", "make": "make it"}]}, "not_prepared", "make it"),
    ({"nodes": 2}, "wrong_nodes", "the run asks for 2 nodes and finds 1: "),
    ({"device": "cuda"}, "wrong_hardware", "nvidia-smi"),
], ids=["not prepared", "nodes", "no GPU"])  # fmt: skip
def test_what_a_node_lacks_is_told(drive: Drive, tmp_path: Path, task: dict[str, Any], kind: str, said: str) -> None:
    (tmp_path / "none").mkdir()
    env = {"PATH": f"{tmp_path}/none"} if kind == "wrong_hardware" else None
    assert drive("echo never", env, **task).wait(300) == 0
    problem = known(report(tmp_path).problem)
    assert problem.kind == kind
    assert said in problem.message
    assert not (tmp_path / "logs" / "output.log").exists()


def test_without_a_script_it_says_so(drive: Drive, tmp_path: Path) -> None:
    process = drive("")
    (tmp_path / "run.sh").unlink()
    assert process.wait(300) == 0
    assert report(tmp_path).exit_code == 127
    assert "run.sh: No such file or directory" in output(tmp_path)


def test_in_the_process_of_pytest_its_handlers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(clean()):
        monkeypatch.delenv(name)
    prepare(tmp_path, "exit 0", owner=None)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run_command(str(tmp_path))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert report(tmp_path).exit_code == 0
