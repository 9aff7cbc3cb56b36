"""Things broken on purpose on this machine: every one is an error that says what happened, never a number."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ASLEEP, UserFolder, Watch

LOCAL = ("--cluster", "local", "-k", "tiny")
ENDLESS: dict[str, Any] = {"steps": 100_000, "options": ASLEEP, "time_limit": "00:10:00"}


def log_of(session: Path, rank: int) -> Path:
    return session / "runs" / "tiny" / "steps" / f"rank-{rank:05d}.jsonl"


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_killed_rank_is_named(user: UserFolder, watch: type[Watch], distribution: str) -> None:
    user.recipe(**ENDLESS)
    process = user.start(*LOCAL, distribution)
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pids = [watch.pid(session, "tiny", rank) for rank in (0, 1)]
    os.kill(pids[1], signal.SIGKILL)
    message = user.finish(process).error
    assert "rank_died" in message
    assert f"rank 1 on {os.uname().nodename} (pid {pids[1]}) died without a word" in message
    assert "log: " in message
    user.wait_for(lambda _: not any(alive(pid) for pid in pids), timeout_s=30)


def test_a_rank_that_is_killed_before_the_ranks_have_met_is_named(user: UserFolder, watch: type[Watch]) -> None:
    """The others would wait for it until the deadline of the start."""
    user.recipe(**ENDLESS)
    process = user.start(*LOCAL)
    begun = "runs/tiny/steps/rank-00001.jsonl"
    session = user.wait_for(lambda session: any("\n" in log.read_text() for log in session.glob(begun)) and session)
    pid = watch.pid(session, "tiny", 1)
    os.kill(pid, signal.SIGKILL)
    assert f"rank 1 on {os.uname().nodename} (pid {pid}) died without a word" in user.finish(process).error


def test_a_hung_rank_is_named_and_ended(user: UserFolder, watch: type[Watch]) -> None:
    """A rank that stops while the others wait for it is found by its place in the step."""
    user.recipe(**ENDLESS, deadlines={"hang_factor": 5.0, "hang_floor_s": 4.0})
    process = user.start(*LOCAL)
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    pid = watch.pid(session, "tiny", 1)
    os.kill(pid, signal.SIGSTOP)
    message = user.finish(process).error
    assert "(hang): no step for " in message
    assert "while others wait in" in message or "all 2 ranks stand in" in message
    assert f"stacks of 1 of 2 ranks: {session}/runs/tiny/stacks; rank 1 on {os.uname().nodename}" in message
    assert f"(pid {pid}) cannot answer: the process is stopped (T)" in message
    assert "in train (" in (session / "runs/tiny/stacks/rank-00000.txt").read_text().replace("_train", "in train")
    user.wait_for(lambda _: not alive(pid), timeout_s=30)


def test_a_run_that_never_starts_is_ended(user: UserFolder) -> None:
    """No first step within the deadline is an error that says where the ranks stand."""
    user.recipe(**ENDLESS | {"options": {"step_s": 60.0}}, deadlines={"startup_s": 0.5})
    assert "no first step within 0.5 s" in user.run(*LOCAL).error


def test_in_the_background_of_a_shell_a_run_is_ended_as_well(user: UserFolder) -> None:
    """`nohup pytest ... &` ignores SIGINT; ranks that inherited that could not be ended by it."""
    user.recipe(**ENDLESS | {"options": {"step_s": 60.0}}, deadlines={"startup_s": 0.5})
    background = ["bash", "-c", "trap '' INT; exec \"$@\"", "bash", *user.command(*LOCAL)]
    done = subprocess.run(
        background, cwd=user.path, env=user.environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert "no first step within 0.5 s" in done.stdout


@pytest.mark.parametrize(("changes", "words"), [
    ({"optimizer": {"learning_rate": 1.0e39, "warmup_steps": 0}}, "not_finite.*is (nan|inf) at step"),
    ({"optimizer": {"learning_rate": 50.0, "warmup_steps": 0}, "steps": 8}, "loss_rises|not_finite"),
    ({**ENDLESS, "time_limit": 1}, "not finished within its time limit of 00:01:00.*--time"),
], ids=["no number", "a loss that rises", "our own time limit"])  # fmt: skip
def test_a_run_that_comes_to_nothing_is_an_error(user: UserFolder, changes: dict[str, Any], words: str) -> None:
    user.recipe(**changes)
    message = user.run(*LOCAL).error
    assert re.search(words, message, re.DOTALL), message


@pytest.mark.parametrize(
    ("garbage", "said"),
    [(b"\xff\xfe step 3\n", "rank-00000.jsonl:"), (b'{"event": "step", "step": 7, "seco\n', "rank-00000.jsonl:")],
    ids=["not UTF-8", "cut"],
)
def test_a_run_with_a_damaged_log_is_no_verdict(
    user: UserFolder, watch: type[Watch], garbage: bytes, said: str
) -> None:
    """A line that cannot be read is counted and shown; the steps around it are not enough for a verdict."""
    user.recipe(steps=400)
    process = user.start(*LOCAL)
    session = user.wait_for(lambda session: watch.steps(session) > 3 and session)
    with log_of(session, 0).open("ab") as log:
        log.write(garbage)
    message = user.finish(process).error
    assert "unreadable_log" in message
    assert said in message


def test_missing_steps_make_the_run_unjudgeable(user: UserFolder, watch: type[Watch]) -> None:
    """A log that lost steps, whatever the ranks say at their end, is no evidence."""
    user.recipe(steps=400)
    process = user.start(*LOCAL)
    session = user.wait_for(lambda session: watch.steps(session, rank=1) > 20 and session)
    log = log_of(session, 1)
    lines = log.read_bytes().splitlines(keepends=True)
    # In place, because the rank goes on appending to this very file.
    with log.open("r+b") as file:
        file.write(b"".join(lines[:3]))
        file.truncate()
    message = user.finish(process).error
    assert "steps_missing" in message or "unreadable_log" in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_nothing_is_left_over(user: UserFolder, watch: type[Watch], number: signal.Signals, distribution: str) -> None:
    """Ranks end at once if pytest can still act, else when they miss its sign of life."""
    user.recipe(**ENDLESS)
    process = user.start(*LOCAL, distribution, "-o", "llmbench_heartbeat_timeout=15")
    session = user.wait_for(lambda session: watch.steps(session) > 1 and session)
    pids = [watch.pid(session, "tiny", rank) for rank in (0, 1)]
    process.send_signal(number)
    process.communicate(timeout=300)
    user.wait_for(lambda _: not any(alive(pid) for pid in pids), timeout_s=60)
