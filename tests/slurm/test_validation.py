"""Eight nodes of which the fifth is bad, in one way after the other: the suite names it, and training avoids it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cluster.slurm.commands import clean_environment
from tests.conftest import Result, UserFolder
from tests.slurm.conftest import Queue

SLOW_LINK = Path(__file__).parent / "slow_link"
NODES = [f"n{number}" for number in range(1, 9)]
BAD = "n5"
CHECKS = """
import pytest

@pytest.mark.check({checks})
def test_fit(health):
    assert not health.faults, health.explanation

@pytest.mark.recipe("tiny")
def test_trains(run):
    assert run.record.hosts
"""


def on_bad(*lines: str) -> list[str]:
    """Shell lines that the bad node's tasks run before they start."""
    return [f'if [ "$SLURMD_NODENAME" = {BAD} ]; then {"; ".join(lines)}; fi']


@dataclass(frozen=True)
class Fault:
    """One way in which a node is bad."""

    check: str  # the check that is to find it
    said: str  # its message
    system: dict[str, Any]  # its part of the system's file
    # Makes the node bad while the session runs, and gives what the session's environment needs for it.
    made: Callable[[Path], AbstractContextManager[dict[str, str]]] | None = None


def daemon_of(node: str) -> int:
    base = Path(os.environ.get("LLMBENCH_SLURM", "/tmp/llmbench-slurm"))
    (pid_file,) = base.glob(f"run/slurmd*{node}.pid")
    return int(pid_file.read_text())


@contextmanager
def dead_daemon(_: Path) -> Iterator[dict[str, str]]:
    """The node's daemon is gone, and Slurm has not noticed yet. Nobody else has a job there that would suffer."""
    command = ["salloc", "--no-shell", "--no-kill", "--exclusive", "--nodes=8", "--time=10"]
    granted = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
    job = granted.stderr.rpartition("allocation ")[2].split()[0]
    os.kill(daemon_of(BAD), 9)
    try:
        yield {"SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "8"}
    finally:
        subprocess.run(["scancel", job], check=True, env=clean_environment())


def inside(node: str, *command: str) -> None:
    """Run a command where the node's daemon sees its files."""
    enter = ["nsenter", "--mount", f"--target={daemon_of(node)}"]
    subprocess.run([*enter, *command], check=True, capture_output=True)


@contextmanager
def hidden(folder: Path) -> Iterator[dict[str, str]]:
    """The node sees another, empty folder in place of one."""
    folder.mkdir()
    (folder / "topo.xml").write_text('<system version="1"/>\n')
    inside(BAD, "mount", "-t", "tmpfs", "none", str(folder))
    try:
        yield {}
    finally:
        inside(BAD, "umount", str(folder))


@contextmanager
def other_release(folder: Path) -> Iterator[dict[str, str]]:
    """The node has another operating system, as far as its files say."""
    other = folder.with_name("os-release")
    other.write_text('NAME="Other"\nVERSION_ID="1"\nID=other\nPRETTY_NAME="Other 1"\n')
    inside(BAD, "mount", "--bind", str(other), "/etc/os-release")
    try:
        yield {}
    finally:
        inside(BAD, "umount", "/etc/os-release")


FAULTS = {
    "limit": Fault("limits", "open files", {"setup": on_bad("ulimit -n 128")}),
    "file": Fault("environment", "topo.xml", {"env": {"NCCL_TOPO_FILE": "{folder}/topo.xml"}}, hidden),
    "software": Fault("software", "Other 1", {}, other_release),
    "slow": Fault("pairs", "GB/s",
                  {"setup": on_bad(f"export PYTHONPATH={SLOW_LINK}"),
                   "validation": {"pairs": {"options": {"rounds": 4, "bisect": False, "iterations": 3, "warm_up": 1,
                                                        "tolerance": 0.8}}}}),
    "daemon": Fault("limits", "never started", {}, dead_daemon),
}  # fmt: skip


def run(user: UserFolder, fault: Fault, *args: str) -> Result:
    user.test(CHECKS.format(checks=f'"limits", "{fault.check}"'))
    user.recipe()
    folder = user.path / "topology"
    text = yaml.safe_dump({"name": "emulated", "cluster": "slurm", "gpus_per_node": 0, **fault.system})
    (user.path / "emulated.yaml").write_text(text.replace("{folder}", str(folder)))
    with fault.made(folder) if fault.made is not None else nullcontext({}) as environment:
        user.env |= environment
        return user.run("--system=emulated.yaml", "-n0", *args)


@pytest.mark.breaks_nodes
@pytest.mark.parametrize("way", FAULTS)
def test_the_bad_node_is_named_and_training_avoids_it(user: UserFolder, queue: type[Queue], way: str) -> None:
    """All other nodes pass, the run of the first four fit nodes is made, and that of the others skipped."""
    if os.geteuid() != 0:
        pytest.skip("only root can break a node")
    fault = FAULTS[way]
    result = run(user, fault, "--nodes", "8", "--nodes-per-run", "4", "--quarantine", "bad.txt")
    cases = {name: case for name, case in result.cases.items() if name.startswith(f"test_fit[{fault.check}-")}
    wrong = {case.properties["host"]: case for case in cases.values() if case.outcome != "passed"}
    assert list(wrong) == [BAD], result.text
    assert len(cases) == 8
    assert fault.said in wrong[BAD].message
    first, second = (result.cases[f"test_trains[tiny-group{group}]"] for group in (1, 2))
    assert first.outcome == "passed", result.text
    assert first.properties["hosts"] == "n1,n2,n3,n4"
    assert second.outcome == "skipped"
    assert BAD in second.message
    assert fault.check in second.message
    (line,) = [line for line in (user.path / "bad.txt").read_text().splitlines() if not line.startswith("#")]
    assert line.startswith(BAD)
    assert f"scontrol update nodename={BAD} state=drain" in result.text
    assert "drain" not in queue.run("sinfo", "--noheader", "--format=%T")


def test_a_node_in_quarantine_is_not_asked_for(user: UserFolder) -> None:
    (user.path / "bad.txt").write_text(f"{BAD}  # broken\n")
    user.test(CHECKS.format(checks='"limits"'))
    user.recipe()
    options = ["--cluster", "slurm", "--gpus-per-node", "0", "--quarantine", "bad.txt", "-n0"]
    result = user.run(*options, "--nodes", "7", "-k", "fit", code=0)
    hosts = [case.properties["host"] for name, case in sorted(result.cases.items()) if "slot" in name]
    assert hosts == [node for node in NODES if node != BAD]
    refused = user.run(*options, "--nodes", "8", "-k", "fit")
    assert {case.outcome for case in refused.cases.values()} == {"error"}


def test_a_hang_names_the_rank_and_the_phase(user: UserFolder) -> None:
    """A rank that stops for good in the middle of a collective: the others are ended, the node is named."""
    system = {
        "setup": on_bad(f"export PYTHONPATH={SLOW_LINK} LINK_STOPS=1"),
        "validation": {"all_reduce": {"deadline_s": 25}},
    }
    two = ("--nodes", "2", "--slurm", f"nodelist=n4,{BAD}")
    result = run(user, Fault("all_reduce", "hangs", system), *two, "-k", "all_reduce")
    case = result.cases["test_fit[all_reduce]"]
    assert case.outcome == "error"
    assert BAD in case.message


def test_a_busy_node_is_waited_for(user: UserFolder, queue: type[Queue]) -> None:
    """All nodes asked for are checked: one that another job has is waited for, and that is said."""
    user.test(CHECKS.format(checks='"limits"'))
    user.recipe()
    job = queue.run(
        "sbatch", "--parsable", f"--nodelist={BAD}", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    try:
        options = ["--cluster", "slurm", "--gpus-per-node", "0", "--nodes", "8", "-n0", "-k", "fit"]
        process = user.start(*options)
        user.wait_for(lambda session: len(queue.jobs_of(session)) == 1)
        assert process.poll() is None
    finally:
        queue.run("scancel", job.strip())
    result = user.finish(process, code=0)
    assert {case.properties["host"] for case in result.cases.values()} == set(NODES)
