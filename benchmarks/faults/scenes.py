"""Sessions of pytest in which faults strike: several runs of one session, or a session for each."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.faults.judging import Expected, Seen, look
from benchmarks.faults.left import doubles, remains
from tests.conftest import ASLEEP, Started, UserFolder, pid_of_rank, steps_logged
from tests.slurm.conftest import Queue

INI = (
    "[pytest]\nfilterwarnings = error\nllmbench_recipes = recipes\nllmbench_gpus_per_node = 0\n"
    "llmbench_require_verdict = no\n"
)
# One rank a node on two nodes: it does not end by itself.
ENDLESS: Mapping[str, Any] = {"steps": 100_000, "options": ASLEEP, "time_limit": "00:10:00", "nodes": 2}
SHORT: Mapping[str, Any] = {"steps": 60, "options": ASLEEP, "time_limit": "00:05:00"}
SLURM = ("--cluster", "slurm")
READY_S, ENDS_S, LEFT_S, LOOK_S = 120.0, 150.0, 60.0, 0.2
AT_A_TIME = 4
# A process, a job or a node that is not what the fault takes it for.
CANNOT = (AssertionError, OSError, StopIteration, subprocess.CalledProcessError, pytest.fail.Exception)


@dataclass
class Struck:
    """A run under way, for what strikes it."""

    user: UserFolder  # the folder in which pytest runs
    key: str  # the run's name
    process: Started  # pytest
    after: int  # steps before the fault strikes: another number in each repetition

    @property
    def session(self) -> Path:
        """The session's folder, once there is one."""
        assert self.user.session is not None
        return self.user.session

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.session / "runs" / self.key

    @property
    def job(self) -> str:
        """The id of its job, or of the job that holds its nodes."""
        lines = Queue.run("squeue", "--noheader", "--format=%i|%j|%k").splitlines()
        jobs = {line.split("|")[1]: line.split("|")[0] for line in lines if f"llmbench:{self.session.name}" in line}
        return jobs.get(f"llmbench-{self.key}") or next(iter(jobs.values()))

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        os.kill(pid_of_rank(self.session, self.key, rank), number)

    def log(self, rank: int) -> Path:
        """A rank's step log."""
        return self.run / "steps" / f"rank-{rank:05d}.jsonl"

    def trains(self) -> bool:
        """Whether it has made its steps before the fault."""
        return steps_logged(self.session, self.key) > self.after


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A thing broken on purpose."""

    name: str  # unique; also the run's
    family: str  # the broken part: ranks, jobs, Slurm, pytest, input
    done: str  # a sentence: what is done
    scene: str  # the sessions in which it strikes: a key of `SCENES`
    expected: Expected  # its due outcome
    recipe: Mapping[str, Any] = field(default_factory=dict)  # how its recipe is unlike the tiny one of the tests
    options: tuple[str, ...] = ()  # for pytest, where it has a session of its own
    prepare: Callable[[UserFolder], object] | None = None  # changes to the folder before pytest starts
    ready: Callable[[Struck], object] = Struck.trains  # whether it can strike; by default, after some steps
    strike: Callable[[Struck], object] | None = None  # the fault itself, if the folder does not have it already
    resumes: int = 0  # how often the session is then resumed; what is seen is the last one
    proof: str = ""  # a file of the folder that is there once the fault has struck, where pytest itself meets it
    damage: str = ""  # a file of the folder that is there if the fault has done what it must not

    @property
    def key(self) -> str:
        """The run's name: no other recipe is selected by it."""
        return f"fault_{self.name.replace('-', '_')}"


class Told(dict[str, Seen | str]):
    """The outcome of each fault, or the reason why it has none."""


# Makes faults strike in sessions below a folder, at random moments, and yields the outcomes one session at a time.
Scene = Callable[[Path, list[Fault], random.Random], Iterator[Told]]


def user_folder(folder: Path, faults: Iterable[Fault]) -> UserFolder:
    """A user's folder with the recipes of faults."""
    folder.mkdir()
    (folder / "pytest.ini").write_text(INI)
    user = UserFolder(pytester=cast("Any", None), path=folder)
    user.test()
    for fault in faults:
        user.recipe(fault.key, **fault.recipe)
        if fault.prepare:
            fault.prepare(user)
    return user


def strike_all(user: UserFolder, faults: Iterable[Fault], process: Started, after: int) -> dict[str, str]:
    """Let each fault strike as soon as it can; why one could not."""
    waiting, failed = {fault.name: fault for fault in faults if fault.strike}, dict[str, str]()
    deadline = time.monotonic() + READY_S
    while waiting and process.poll() is None and time.monotonic() < deadline:
        for fault in list(waiting.values()):
            run = Struck(user, fault.key, process, after)
            if user.session is not None and is_ready(fault, run):
                del waiting[fault.name]
                assert fault.strike is not None
                try:
                    fault.strike(run)
                except CANNOT as error:
                    failed[fault.name] = f"the fault could not strike: {error}"
        time.sleep(LOOK_S)
    return {**failed, **dict.fromkeys(waiting, "the fault could not strike: the moment for it did not come")}


def is_ready(fault: Fault, run: Struck) -> bool:
    """Whether a fault can strike; not while Slurm does not answer."""
    try:
        return bool(fault.ready(run))
    except subprocess.CalledProcessError:
        return False


def together(user: UserFolder, faults: list[Fault], options: tuple[str, ...], after: int) -> Told:
    """One session in which every fault has a run of its own."""
    process = user.start(*options, "-k", " or ".join(fault.key for fault in faults))
    try:
        missed = strike_all(user, faults, process, after)
        output = finished(process)
        for _ in range(max(fault.resumes for fault in faults)):
            process = user.start(*options, "-k", " or ".join(fault.key for fault in faults), "--resume")
            output = finished(process)
    except subprocess.TimeoutExpired:
        goes_on = [fault.key for fault in faults if not recorded(user, fault)]
        missed = {fault.name: f"pytest did not end: {', '.join(goes_on)} went on" for fault in faults}
        output = ""
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    told = {fault.name: look(user.session, fault.key, process.returncode, output) for fault in faults}
    unmet = [fault.name for fault in faults if fault.proof and not (user.path / fault.proof).exists()]
    return Told({**told, **dict.fromkeys(unmet, "the fault could not strike: pytest did not meet it"), **missed})


def recorded(user: UserFolder, fault: Fault) -> bool:
    """Whether its run has come to an end."""
    return user.session is not None and (user.session / "runs" / fault.key / "record.json").exists()


def finished(process: Started) -> str:
    """Wait for the end of pytest; what it printed."""
    return process.communicate(timeout=ENDS_S)[0]


def with_left(user: UserFolder, faults: list[Fault], told: Told) -> Told:
    """Look for jobs and processes until there are none, or a minute is over."""
    deadline = time.monotonic() + LEFT_S
    while left := remains(user.path):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    keys = [fault.key for fault in faults]
    for fault in faults:
        # A line that names no other run may concern any of them.
        own = tuple(each for each in left if fault.key in each or not any(key in each for key in keys))
        made = (f"the file {fault.damage}",) if fault.damage and (user.path / fault.damage).exists() else ()
        seen = told[fault.name]
        if isinstance(seen, Seen):
            told[fault.name] = replace(seen, left=(*own, *made), double=doubles(user.session, fault.key))
    return told


def one_session(*options: str, mends: bool = False) -> Scene:
    """A scene of one session; with `mends`, nodes that its faults have broken come back when all of them are seen."""

    def play(folder: Path, faults: list[Fault], chance: random.Random) -> Iterator[Told]:
        user = user_folder(folder, faults)
        told = together(user, faults, (*SLURM, *options), chance.randint(2, 10))
        if mends:
            Queue.mend()
        yield with_left(user, faults, told)

    return play


def a_session_each(at_a_time: int, *, mends: bool = False) -> Scene:
    """A scene in which every fault has a session of its own; with `mends`, Slurm is mended after each."""

    def play(folder: Path, faults: list[Fault], chance: random.Random) -> Iterator[Told]:
        folder.mkdir()
        moments = {fault.name: chance.randint(2, 10) for fault in faults}

        def one(fault: Fault) -> Told:
            user = user_folder(folder / fault.name, [fault])
            try:
                told = together(user, [fault], (*SLURM, *fault.options), moments[fault.name])
                if mends:
                    Queue.mend()
                return with_left(user, [fault], told)
            except CANNOT as error:  # the others are played all the same
                return Told({fault.name: f"it could not be played: {error}"})

        with ThreadPoolExecutor(at_a_time) as pool:
            yield from pool.map(one, faults)

    return play


def replayed(folder: Path, faults: list[Fault], chance: random.Random) -> Iterator[Told]:
    """Healthy runs of one session, each of whose files are then damaged; a replay judges them."""
    user = user_folder(folder, faults)
    names = " or ".join(fault.key for fault in faults)
    process = user.start(*SLURM, "-k", names)
    output, after = finished(process), chance.randint(2, 10)
    if process.returncode:
        yield Told(dict.fromkeys((fault.name for fault in faults), f"healthy runs did not pass: {output[-2000:]}"))
        return
    measured = user.session
    for fault in faults:
        assert fault.strike is not None
        fault.strike(Struck(user, fault.key, process, after))
    told = together_again(user, faults, (f"--replay={measured}", "-k", names))
    yield with_left(user, faults, told)


def together_again(user: UserFolder, faults: list[Fault], options: tuple[str, ...]) -> Told:
    """Judge what is on disk."""
    process = user.start(*options)
    output = finished(process)
    return Told({fault.name: look(user.session, fault.key, process.returncode, output) for fault in faults})


SCENES: dict[str, Scene] = {
    "replayed": replayed,
    "jobs": one_session(mends=True),
    "survived": one_session(mends=True),
    "held": one_session("--nodes", "2"),
    "alone": a_session_each(AT_A_TIME),
    "daemons": a_session_each(1, mends=True),
}
