"""The beginning of a job's task: what it executes is data, and it leaves behind how that ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.wire.beginning import Beginning, job_file, result_file
from pytest_llmbench.workloads.node import begin

JOB = "4711"
HOLD = "pytest_llmbench.workloads.rank.deadman:hold"
REFUSED = {
    "a module of others": {"entry": "os:system", "arguments": ["true"], "folder": None},
    "one that begins as ours": {"entry": "pytest_llmbenches:main", "arguments": [], "folder": None},
    "a file instead of a module": {"entry": "pytest_llmbench./tmp/evil:main", "arguments": [], "folder": None},
    "a function that is not public": {"entry": "pytest_llmbench.core.files:_shared", "arguments": [], "folder": None},
    "a function of a function": {"entry": HOLD + ".run", "arguments": [], "folder": None},
    "no function": {"entry": "pytest_llmbench.core.files", "arguments": [], "folder": None},
    "arguments that are no list": {"entry": HOLD, "arguments": {"path": "x"}, "folder": None},
    "an argument that is neither text nor number": {"entry": HOLD, "arguments": [["x"]], "folder": None},
    "a key more": {"entry": HOLD, "arguments": [], "folder": None, "python": "evil"},
    "a key less": {"entry": HOLD, "arguments": []},
    "no mapping": [HOLD],
}


def start(folder: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", begin.__name__, str(folder)], env={**os.environ, "SLURM_JOB_ID": JOB, **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def begins(folder: Path, *arguments: str | float, entry: str = HOLD, where: Path | None = None) -> None:
    stands = None if where is None else str(where)
    Beginning(entry=entry, arguments=arguments, folder=stands).write(job_file(folder, JOB))


def result(folder: Path, task: int = 0) -> Any:
    return json.loads(result_file(folder, JOB, task).read_bytes())


@pytest.fixture
def asked_to_stop(tmp_path: Path) -> Path:
    """The file of an owner that asks for the end at once."""
    (tmp_path / "stop").touch()
    return tmp_path / "owner"


def test_it_waits_for_its_file_and_tells_that_it_ended(tmp_path: Path, asked_to_stop: Path) -> None:
    """A session names the file when it knows the job's id; nobody else can read the result."""
    with start(tmp_path, SLURM_PROCID="3") as task:
        begins(tmp_path, str(asked_to_stop), 60.0)
        assert task.wait() == 0
    assert result(tmp_path, 3) == {"error": None}
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob(f"{JOB}_*")} == {"0o600"}


def test_an_error_is_told_with_its_traceback(tmp_path: Path) -> None:
    begins(tmp_path, "a folder without a task", entry="pytest_llmbench.workloads.rank.main:run_rank")
    with start(tmp_path) as task:
        said = task.stdout.read() if task.stdout else ""
    assert task.returncode == 1
    told = result(tmp_path)["error"]
    assert told.startswith("Traceback")
    for text in (told, said):
        assert "in run_rank" in text
        assert "ConfigError: a folder without a task/task.json: cannot be read" in text


def test_it_stands_where_pytest_does(tmp_path: Path, asked_to_stop: Path) -> None:
    """Slurm lets a job with a percent sign in its path begin in its own folder; its result is there all the same."""
    job = tmp_path / "50%"
    job.mkdir()
    begins(job, asked_to_stop.name, 60.0, where=tmp_path)
    with start(job) as task:
        assert task.wait() == 0
    assert result(job) == {"error": None}


def test_slurm_s_first_signal_does_not_end_it(tmp_path: Path) -> None:
    owner = tmp_path / "owner"
    begins(tmp_path, str(owner), 60.0, 0.05)
    with start(tmp_path) as task:
        assert task.stdout is not None
        while not handles(task.pid, signal.SIGTERM):
            assert task.poll() is None
            time.sleep(0.01)
        task.send_signal(signal.SIGTERM)
        assert "passes over SIGTERM" in task.stdout.readline()
        (tmp_path / "stop").touch()
        assert task.wait() == 0
    assert result(tmp_path) == {"error": None}


def handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_job_that_nobody_knows_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "_PATIENCE_S", 0.02)
    monkeypatch.setenv("SLURM_JOB_ID", JOB)
    with pytest.raises(ConfigError, match=r"4711_submitted\.json: not there after 0\.02 s: the session does not"):
        begin.main(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_nothing_but_functions_of_ours_is_called(tmp_path: Path, data: object) -> None:
    job_file(tmp_path, JOB).write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="is not the call of a job of ours"):
        Beginning.read(job_file(tmp_path, JOB))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x80\x04."], ids=["empty", "cut", "deep", "a pickle"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    job_file(tmp_path, JOB).write_text(text)
    with pytest.raises(ConfigError, match=r"4711_submitted\.json: cannot be read: "):
        Beginning.read(job_file(tmp_path, JOB))
