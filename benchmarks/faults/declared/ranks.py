"""Ranks that die, hang or go wrong, and step logs that were damaged while their run was under way."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from benchmarks.faults.judging import Expected
from benchmarks.faults.scenes import ENDLESS, SHORT, Fault, Struck
from pytest_llmbench.core.record.records import ProblemKind

QUICK: dict[str, Any] = {"deadlines": {"hang_factor": 5.0, "hang_floor_s": 4.0}}
LONG: dict[str, Any] = {**SHORT, "nodes": 2, "steps": 150}


def error(*kinds: ProblemKind, words: tuple[str, ...] = (), **more: Any) -> Expected:
    """An ERROR of one of some kinds in a session that fails."""
    return Expected(exit=1, kinds=kinds, words=words, **more)


def append(garbage: bytes) -> Callable[[Struck], object]:
    """Write into the step log of rank 0."""

    def strike(run: Struck) -> None:
        with run.log(0).open("ab") as log:
            log.write(garbage)

    return strike


def drop_steps(run: Struck) -> None:
    """Take all but three lines from the log of rank 1, in place: the rank goes on appending to it."""
    lines = run.log(1).read_bytes().splitlines(keepends=True)
    with run.log(1).open("r+b") as log:
        log.write(b"".join(lines[:3]))
        log.truncate()


def simulated(name: str, done: str, *kinds: ProblemKind, words: tuple[str, ...] = ()) -> Fault:
    """A fault of `--llmbench-simulate`."""
    return Fault(
        name=f"simulated-{name}", family="ranks", scene="alone", done=f"{done} (`--llmbench-simulate {name}@5`)",
        recipe={"nodes": 2, **QUICK}, options=("--llmbench-simulate", f"{name}@5"),
        expected=error(*kinds, words=words, told=(f"SIMULATED FAULT {name}@5",)),
    )  # fmt: skip


FAULTS = [
    Fault(
        name="rank-killed", family="ranks", scene="jobs", recipe=ENDLESS,
        done="SIGKILL to rank 1 of 2", strike=lambda run: run.signal(1, signal.SIGKILL),
        expected=error("rank_died", words=("rank 1 on ",), unsaid=("rank 0 on ",)),
    ),
    Fault(
        name="first-rank-killed", family="ranks", scene="jobs", recipe=ENDLESS,
        done="SIGKILL to rank 0 of 2", strike=lambda run: run.signal(0, signal.SIGKILL),
        expected=error("rank_died", words=("rank 0 on ",), unsaid=("rank 1 on ",)),
    ),
    Fault(
        name="rank-terminated", family="ranks", scene="survived", recipe=LONG,
        done="SIGTERM to rank 1 of 2, which a job's Python ignores", strike=lambda run: run.signal(1, signal.SIGTERM),
        expected=Expected(exit=0, verdict="PASS"),
    ),
    Fault(
        name="rank-stopped", family="ranks", scene="jobs", recipe={**ENDLESS, **QUICK},
        done="SIGSTOP to rank 1 of 2, for good", strike=lambda run: run.signal(1, signal.SIGSTOP),
        expected=error("hang", words=("no step for ", "cannot answer: its process or its node stands still")),
    ),
    Fault(
        name="no-first-step", family="ranks", scene="jobs", done="The first step takes longer than `startup_s`",
        recipe={**ENDLESS, "options": {"step_s": 60.0}, "deadlines": {"startup_s": 0.5}},
        expected=error("no_start", words=("no first step within 0.5 s",)),
    ),
    Fault(
        name="loss-nan", family="ranks", scene="jobs", done="The learning rate is 10³⁹: the loss becomes NaN",
        recipe={"optimizer": {"learning_rate": 1.0e39, "warmup_steps": 0}},
        expected=error("not_finite", words=(" at step ",)),
    ),
    Fault(
        name="loss-rises", family="ranks", scene="jobs", done="The learning rate is 50: the loss rises",
        recipe={"optimizer": {"learning_rate": 50.0, "warmup_steps": 0}},
        expected=error("loss_rises", words=("loss",)),
    ),
    Fault(
        name="log-not-utf8", family="ranks", scene="jobs", recipe=LONG,
        done="A line that is not UTF-8 is written into a step log", strike=append(b"\xff\xfe step 3\n"),
        expected=error("unreadable_log", words=("rank-00000.jsonl:",)),
    ),
    Fault(
        name="log-torn", family="ranks", scene="jobs", recipe=LONG,
        done="A line of a step log is torn", strike=append(b'{"event": "step", "step": 7, "seco\n'),
        expected=error("unreadable_log", words=("rank-00000.jsonl:",)),
    ),
    Fault(
        name="log-with-escapes", family="ranks", scene="jobs", recipe=LONG,
        done="Escapes that clear the screen and set the title are written into a step log",
        strike=append(b"\x1b[2J\x1b]0;title\x07 ]]> \x00\n"),
        expected=error("unreadable_log", words=("rank-00000.jsonl:",), never=("\x1b[2J", "\x1b]0;", "\x07")),
    ),
    Fault(
        name="log-lost-steps", family="ranks", scene="jobs", recipe=LONG,
        done="Steps vanish from the log of rank 1", strike=drop_steps,
        expected=error("steps_missing", words=(" of 150 steps were logged by all 2 ranks",)),
    ),
    Fault(
        name="held-rank-killed", family="ranks", scene="held", recipe=ENDLESS,
        done="SIGKILL to rank 1 of 2, in held nodes", strike=lambda run: run.signal(1, signal.SIGKILL),
        expected=error("rank_died", words=("rank 1 on ",), unsaid=("rank 0 on ",)),
    ),
    Fault(
        name="held-rank-stopped", family="ranks", scene="held", recipe={**ENDLESS, **QUICK},
        done="SIGSTOP to rank 1 of 2, for good, in held nodes", strike=lambda run: run.signal(1, signal.SIGSTOP),
        expected=error("hang", words=("no step for ",)),
    ),
    Fault(
        name="held-loss-nan", family="ranks", scene="held", done="The loss becomes NaN, in held nodes",
        recipe={"nodes": 2, "optimizer": {"learning_rate": 1.0e39, "warmup_steps": 0}},
        expected=error("not_finite", words=(" at step ",)),
    ),
    simulated("die", "A rank raises", "rank_died", words=("rank 1 on ",)),
    simulated("oom", "A rank finds no more memory", "rank_died", words=("failed: MemoryError",)),
    simulated("full-disk", "A rank finds the disk full", "rank_died", words=("rank 1 on ",)),
    simulated("lost-node", "A rank dies as with its node", "rank_died", words=("died without a word",)),
    simulated("hang", "A rank hangs in a step", "hang", words=("stands in forward of step 5",)),
    simulated("nan", "A rank logs NaN", "not_finite", words=("at step 5",)),
    simulated("damaged-log", "A rank damages its log", "unreadable_log", words=("rank-00001.jsonl:",)),
    simulated("wrong-numbers", "A rank computes other numbers", "ranks_differ", words=("did not train one model",)),
]  # fmt: skip
