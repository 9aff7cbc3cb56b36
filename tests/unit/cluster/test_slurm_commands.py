"""When Slurm is asked; its commands' bytes, their silence, and the environment that must not steer them."""

import itertools
import os
import time
from pathlib import Path

import pytest

from pytest_llmbench.cluster.slurm.commands import (
    NoAnswerError,
    ask,
    clean_environment,
    ignored_options,
    is_silence,
    run,
    slurm_words,
)
from pytest_llmbench.cluster.slurm.controller import Rhythm
from pytest_llmbench.core.errors import ClusterError


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "squeue"
    path.touch(mode=0o755)
    return path


def test_a_missing_command_says_where_to_run() -> None:
    with pytest.raises(ClusterError, match="run this on a login node"):
        run(["no-such-slurm-command"])


def test_slurm_speaks_without_its_prefixes() -> None:
    """The words of `sbatch: error:` lines, each once, and nothing for a terminal to obey."""
    stderr = "sbatch: error: Batch job submission failed: Invalid qos\nsbatch: error: Memory\nsbatch: error: Memory\n"
    assert slurm_words(stderr) == "Batch job submission failed: Invalid qos; Memory"
    assert slurm_words("sbatch: error: a\x1b[2J\x07b") == "a [2J b"


def test_the_last_words_of_a_command_that_hangs_are_told(script: Path) -> None:
    script.write_text("#!/bin/sh\necho 'squeue: error: cannot stat file /x, retrying' >&2\nsleep 300\n")
    with pytest.raises(NoAnswerError, match=r"squeue did not answer within \d+ s: cannot stat file /x, retrying"):
        ask([str(script)], lambda: 0.3)


def test_any_bytes_are_read(script: Path) -> None:
    script.write_bytes(b"#!/bin/sh\nprintf 'a\\351\\n'\nprintf 'squeue: error: \\377' >&2\nexit 1\n")
    answer = ask([str(script)])
    assert (answer.code, answer.stdout, answer.stderr) == (1, "a\ufffd\n", "squeue: error: \ufffd")
    with pytest.raises(ClusterError, match="\ufffd"):
        run([str(script)])


def test_a_slow_command_is_asked_once(script: Path) -> None:
    script.write_text("#!/bin/sh\nsleep 0.5\ncat\n")
    assert ask([str(script)], questions=b"show job 1\n" * 10_000).stdout == "show job 1\n" * 10_000


def test_a_command_that_hangs_is_ended_with_all_that_it_started(script: Path, tmp_path: Path) -> None:
    """A grandchild that keeps the pipes open changes nothing."""
    script.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {tmp_path}/pid\nsleep 300\n")
    waits = iter([1e6, 1e6])
    with pytest.raises(NoAnswerError, match="did not answer"):
        ask([str(script)], lambda: next(waits, 1.0))
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("words", [
    "Batch job submission failed: Socket timed out on send/recv operation",
    "Unable to contact slurm controller (connect failure)",
    "Batch job submission failed: Zero Bytes were transmitted or received",
    "Batch job submission failed: Unable to contact slurm controller (connect failure)",
    "Slurm backup controller in standby mode",
    "slurm_load_jobs error: Unexpected message received",
])  # fmt: skip
def test_silence_is_no_refusal(words: str) -> None:
    assert is_silence(words)


@pytest.mark.parametrize("words", [
    *(f"Batch job submission failed: {why}" for why in (
        "Invalid partition name specified", "Requested time limit is invalid (missing or exceeds some limit)",
        "Job violates accounting/QOS policy (job submit limit, time limits)",
        "Invalid account or account/partition combination specified",
        "Requested node configuration is not available", "Access/permission denied",
    )),
    "Unable to create step for job 7: More processors requested than permitted",
])  # fmt: skip
def test_a_refusal_is_no_silence(words: str) -> None:
    assert not is_silence(words)


def test_no_variable_steers_our_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the job around us and of the user are removed; the choice of the cluster stays."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    gone = ("SLURM_NTASKS", "SBATCH_PARTITION", "SBATCH_ARRAY_INX", "SQUEUE_STATES", "SACCT_FORMAT", "SINFO_FORMAT")
    for name in (*gone, "SLURM_CONF", "SBATCHES", "SLURM_ROOT"):
        monkeypatch.setenv(name, "x")
    environment = clean_environment({"EXTRA": "1"})
    assert not set(gone) & set(environment)
    assert {"SLURM_CONF", "SBATCHES", "EXTRA"} <= set(environment)
    assert set(gone) <= set(ignored_options())
    assert not {"SLURM_CONF", "SLURM_ROOT", "SBATCHES"} & set(ignored_options())


def test_what_slurm_has_set_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a job, dozens of variables are Slurm's; the user's own are still said to be ignored."""
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_QOS"):
        monkeypatch.setenv(name, "7")
    assert "SBATCH_QOS" in ignored_options()
    assert not any(name.startswith("SLURM_") for name in ignored_options())
    assert not set(ignored_options()) & set(clean_environment())
    assert os.environ["SLURM_NTASKS"] == "7"


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def queries(seconds: int, *, changed: bool, stirred: bool, last: bool = False) -> list[float]:
    clock = Clock()
    rhythm, asked = Rhythm(clock), []
    for tick in range(10 * seconds):
        clock.now = 1000.0 + tick / 10
        if stirred:
            rhythm.stir(last=last)
        if rhythm.due(last=last):
            asked.append(clock.now - 1000.0)
            rhythm.note_answer(changed=changed, last=last, took_s=0.0)
    return asked


def test_an_hour_of_events_costs_six_queries_a_minute() -> None:
    for last in (False, True):
        asked = queries(3600, changed=True, stirred=True, last=last)
        assert 360 <= len(asked) <= 360 + 9
        assert len([when for when in asked if when >= 60]) <= 6 * 59 + 1


def test_it_is_quiet_where_nothing_changes() -> None:
    asked = queries(120, changed=False, stirred=False)
    pauses = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert pauses[:4] == [4, 8, 10, 10]


def test_one_query_serves_the_events_of_a_moment() -> None:
    clock = Clock()
    rhythm = Rhythm(clock)
    rhythm.note_answer(changed=False, last=False, took_s=0.0)
    for last, pause_s in ((False, 2.0), (True, 0.25)):
        rhythm.note_answer(changed=False, last=False, took_s=0.0)
        rhythm.stir(last=last)
        assert rhythm.next - clock.now == pause_s
        clock.now += 0.1
        rhythm.stir(last=last)
        assert rhythm.next - clock.now < pause_s


def test_an_answer_that_took_long_is_not_asked_for_again_at_once() -> None:
    clock = Clock()
    rhythm = Rhythm(clock)
    rhythm.note_answer(changed=True, last=True, took_s=30.0)
    assert rhythm.next == clock.now + 30.0
