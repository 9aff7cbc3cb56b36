"""What Slurm says, and what is made of its silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster import slurm as module
from pytest_llmbench.cluster.allocation import HeldJob, Waiting
from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.slurm import JobState, Slurm, clean_environment, parse_state, run, slurm_words
from pytest_llmbench.core.errors import ClusterError


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("COMPLETING", JobState.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("BOOT_FAIL", JobState.NODE_FAIL),
        ("DEADLINE", JobState.TIMEOUT),
        ("REQUEUED", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("", JobState.LOST),
        ("NONSENSE", JobState.LOST),
    ],
)
def test_every_word_of_slurm_has_a_meaning(word: str, state: JobState) -> None:
    """States of squeue and sacct, with their decorations; an unknown one is never taken for success."""
    assert parse_state(word) is state


@given(st.text())
def test_no_state_is_read_as_success_by_chance(word: str) -> None:
    """Only COMPLETED is COMPLETED."""
    if parse_state(word) is JobState.COMPLETED:
        assert word.split(maxsplit=1)[0].rstrip("+") == "COMPLETED"


class Commands:
    """Slurm's commands as shell scripts: what they print, and how they exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(self, name: str, stdout: str = "", code: int = 0, stderr: str = "") -> None:
        """Have a command answer like this from now on."""
        script = self._folder / name
        script.write_text(f"#!/bin/sh\nprintf '%s' '{stdout}'\nprintf '%s' '{stderr}' >&2\nexit {code}\n")
        script.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands in front of the real ones, if there are any."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_REFRESH_S", 0.0)
    commands = Commands(tmp_path)
    for name in ("squeue", "sacct"):
        commands.answer(name, code=1, stderr=f"{name}: error: Unable to contact slurm controller")
    return commands


def test_squeue_knows_first(commands: Commands) -> None:
    """One line of squeue gives state, reason and nodes."""
    commands.answer("squeue", "7|PENDING|Priority|\n")
    slurm = Slurm()
    slurm.watch("7")
    assert (slurm.status("7").state, slurm.status("7").reason) == (JobState.PENDING, "Priority")
    commands.answer("squeue", "7|RUNNING|None|n[1-4]\n")
    assert (slurm.status("7").state, slurm.status("7").nodelist) == (JobState.RUNNING, "n[1-4]")


def test_sacct_is_believed_about_an_end_only(commands: Commands) -> None:
    """Sacct lags behind: its "still running" says nothing, its end is an end."""
    slurm = Slurm()
    slurm.watch("7")
    commands.answer("sacct", "7|RUNNING|None|n1\n")
    assert slurm.status("7").state is JobState.PENDING
    commands.answer("sacct", "7|NODE_FAIL|None|n1\n")
    assert slurm.status("7").state is JobState.NODE_FAIL


def test_a_short_silence_is_waited_out_and_a_long_one_is_a_lost_job(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing answers, the last known state stands; past our patience the job is lost, in Slurm's words."""
    slurm = Slurm()
    slurm.watch("7")
    assert slurm.status("7").state is JobState.PENDING
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    status = slurm.status("7")
    assert status.state is JobState.LOST
    assert "Unable to contact slurm controller" in status.reason


def test_one_query_is_for_all_jobs(commands: Commands, tmp_path: Path) -> None:
    """However many jobs are watched, squeue is asked once."""
    log = tmp_path / "asked"
    script = tmp_path / "squeue"
    script.write_text(f"#!/bin/sh\necho \"$@\" >> {log}\nprintf '1|RUNNING|None|n1\\n2|RUNNING|None|n2\\n'\n")
    slurm = Slurm()
    for job_id in ("1", "2"):
        slurm.watch(job_id)
    slurm.refresh()
    assert len(log.read_text().splitlines()) == 1
    assert "--jobs=1,2" in log.read_text()


def test_a_missing_command_says_where_to_run() -> None:
    """Off the cluster, the error says so."""
    with pytest.raises(ClusterError, match="not on PATH: run this on a login node"):
        run(["no-such-slurm-command"])


def test_slurm_speaks_without_its_prefixes() -> None:
    """The words of `sbatch: error:` lines, each once."""
    stderr = "sbatch: error: Batch job submission failed: Invalid qos\nsbatch: error: Memory\nsbatch: error: Memory\n"
    assert slurm_words(stderr) == "Batch job submission failed: Invalid qos; Memory"


def test_the_environment_of_a_job_does_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that Slurm sets for the job we are in are dropped; the cluster and the user's own stay."""
    for name in ("SLURM_NTASKS", "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "x")
    environment = clean_environment({"EXTRA": "1"})
    assert "SLURM_NTASKS" not in environment
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "EXTRA"} <= set(environment)


def test_a_failing_look_up_of_hosts_is_no_end(commands: Commands, tmp_path: Path) -> None:
    """One command that fails does not end a session whose nodes are there: the next look finds them."""
    slurm = Slurm()
    request = JobRequest(
        name="hold", folder=tmp_path, nodes=2, tasks_per_node=1, gpus_per_node=0, time_min=5, comment="", use_srun=False
    )
    held = HeldJob(request, Heartbeat(tmp_path), slurm)
    held.job_id = "7"
    slurm.watch("7")
    commands.answer("squeue", "7|RUNNING|None|n[1-2]\n")
    commands.answer("scontrol", code=1, stderr="slurm_load_node error: Socket timed out")
    waiting = held.hosts()
    assert isinstance(waiting, Waiting)
    assert "Socket timed out" in waiting.reason
    commands.answer("scontrol", "n1\nn2\n")
    assert held.hosts() == ("n1", "n2")
