"""End pytest or Slurm's controller at random moments of sessions of a few runs; count the missing, double and left.

    python -m benchmarks.endurance ROUNDS [--kill pytest|slurmctld] [--seed N] [--cluster slurm|local] [--nodes N]
    python -m benchmarks.endurance ROUNDS --kill ends [--seed N] [--part K/N] [--only WORD ...] [--at-a-time N]

A round starts a session and waits for its journal. With `--kill pytest`, it sends SIGKILL to pytest at a moment between
then and the end of a session that is left alone, and resumes the session at once. With `--kill slurmctld`, it sends
SIGKILL to the controller of the Slurm that tools/slurm/up.sh has brought up, starts it again a few seconds later by
that script, and resumes nodes that Slurm drains because they know the id of a job ("Duplicate jobid"), as an operator
would; the session has `--llmbench-retries 5`.
LLMBENCH_SLURM, LLMBENCH_SLURM_PORT and ACCOUNTING are those of that Slurm.

With `--kill ends`, a round is the matrix of ends: SIGINT, SIGTERM, SIGHUP, SIGKILL, `--llmbench-session-time`, or
SIGKILL with the loss of a node for a few seconds; in each tenth of a session; runs as jobs or on held nodes; resumed at
once or after a minute. These are 240 sessions of six runs. `--part 2/4` takes every fourth of them from the second on,
in an order that the seed decides, `--only=-held-` those with such a name, and `--within S` begins none after S seconds.

Of each session, every test has to PASS once, no run may have more than one job (with --nodes, no run that has its
record may be made again) but for attempts that its record has as superseded, and no job may be left in the queue. The
exit status is 1 if one of these fails.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree as ET

import yaml

from benchmarks.faults.left import remains
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import INSTALLED, PYTEST, TEST_REFERENCES, TINY

RUNS, RUNS_OF_ENDS = 12, 6
ENDS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "session-time", "node")
LEFT_S = 60.0
BEGINS_S = 120.0
AWAY_S = 5.0
OPERATOR_S = 20.0
UP = Path(__file__).parents[1] / "tools" / "slurm" / "up.sh"
# A job that a speaking Slurm does not know is lost after this, not after 2 minutes: a round ends sooner.
SESSION_TIME = """
import os
from pytest_llmbench.plugin import interruption
interruption._MINUTE_S = float(os.environ["MINUTE_S"])
"""
MENDING = threading.Lock()
IMPATIENT = "from pytest_llmbench.cluster.slurm import queue\nqueue.PATIENCE_S = 20.0\n"


@dataclass(frozen=True, kw_only=True)
class Round:
    """The remains of a session in which something was killed."""

    killed_s: float  # seconds after its journal began
    finished: int  # runs that had their record when it was killed
    tests: int  # tests of the session: one for each run, on each group of held nodes
    verdicts: int  # tests that PASS in the report
    double: int  # jobs or runs that were made although they were there
    left: int  # jobs in the queue, a minute after the end
    attempts: int  # attempts at runs that `--llmbench-retries` has repeated
    resumed: int  # nodes that were drained, and brought back
    took_s: float  # seconds from the start of the session to its end
    what: str = ""  # the cell of the matrix of ends; empty of others

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing, double or left."""
        return (self.verdicts, self.double, self.left) == (self.tests, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One session of the matrix of ends."""

    end: str  # one of `ENDS`
    moment: int  # the tenth of a session in which it comes
    held: bool  # whether the session holds a node
    wait_s: int  # seconds from the end to `--resume`
    chance: float  # place in that tenth, and share of the longest absence of a node

    def __str__(self) -> str:
        return f"{self.end}-{self.moment}-{'held' if self.held else 'job'}-{self.wait_s}s"

    def after_s(self, whole_s: float) -> float:
        """Seconds of a session, which takes `whole_s` if it is left alone, until the end comes."""
        return whole_s * (self.moment + self.chance) / 10


def cells(seed: int, part: str = "1/1", only: list[str] | None = None) -> list[Cell]:
    """The cells of a part of one round, those that wait for long first."""
    chance = random.Random(seed)
    product = itertools.product(ENDS, range(10), (False, True), (60, 0))
    every = [Cell(end=e, moment=m, held=h, wait_s=w, chance=chance.random()) for e, m, h, w in product]
    chance.shuffle(every)
    first, of = map(int, part.split("/"))
    mine = [cell for cell in every[first - 1 :: of] if all(word in str(cell) for word in only or ())]
    return sorted(mine, key=lambda cell: -cell.wait_s)


class Campaign:
    """Sessions of a few runs in one folder."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.cluster, self.nodes, self.kill = folder, given.cluster, given.nodes, given.kill
        self.runs = RUNS_OF_ENDS if self.kill == "ends" else RUNS
        names = [f"run{number:02d}" for number in range(self.runs)]
        recipes = {name: {**TINY, "steps": 20, "options": {"step_s": 0.05}} for name in names}
        (folder / "recipes").mkdir()
        (folder / "recipes" / "twelve.yaml").write_text(yaml.safe_dump({"family": "twelve", "recipes": recipes}))
        (folder / "test_twelve.py").write_text(TEST_REFERENCES)
        (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_gpus_per_node = 0\n")
        if self.kill == "slurmctld":
            (folder / "conftest.py").write_text(IMPATIENT)
        if self.kill == "ends":
            (folder / "conftest.py").write_text(SESSION_TIME)

    def start(self, *more: str, minute_s: float = 60.0) -> subprocess.Popen[bytes]:
        """Start pytest, with minutes of so many seconds in `--llmbench-session-time`."""
        words = [*PYTEST, "-q", "-k", "run", "--cluster", self.cluster, "--llmbench-require-verdict", "no", *more]
        words += ["--nodes", str(self.nodes), "--nodes-per-run", "1"] if self.nodes and self.cluster == "slurm" else []
        words += ["--llmbench-retries", "5"] if self.kill != "pytest" else []
        words += ["-o", "llmbench_max_runs=2"] if self.kill == "ends" else []
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.folder), "PYTHONPATH": str(INSTALLED), "MINUTE_S": str(minute_s)},
                start_new_session=True,
            )  # fmt: skip

    def begun(self, *more: str, minute_s: float = 60.0) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a session; return it as soon as its journal has begun."""
        old = set((self.folder / "reports").glob("*-*"))
        process, deadline = self.start(*more, minute_s=minute_s), time.monotonic() + BEGINS_S
        while time.monotonic() < deadline and process.poll() is None:
            for session in set((self.folder / "reports").glob("*-*")) - old:
                if (session / "journal").exists() and read_journal(session / "journal")[0]:
                    return process, session
            time.sleep(0.02)
        raise SystemExit(f"a session did not begin: {(self.folder / 'output.log').read_text()[-3000:]}")

    def round(self, after_s: float, away_s: float) -> Round:
        """Kill something at a moment, and go on."""
        began = time.monotonic()
        process, session = self.begun()
        time.sleep(after_s)
        finished = len(list(session.glob("runs/*/record.json")))
        resumed = 0
        if self.kill == "pytest":
            process.kill()
            process.wait()
            if read_journal(session / "journal")[0][-1].event != "ended":
                process = self.start(f"--resume={session.name}")
                process.wait()
        else:
            resumed = without_controller(process, away_s)
        return self.remains(session, process, began, after_s=after_s, finished=finished, resumed=resumed)

    def cell(self, cell: Cell, whole_s: float, begins_s: float) -> Round:
        """End a session in one way, and resume it; pytest takes `begins_s` seconds to its journal."""
        began, after_s = time.monotonic(), cell.after_s(whole_s)
        limited = cell.end == "session-time"
        limit = ("--llmbench-session-time", "00:01:00") if limited else ()
        process, session = self.begun(*limit, minute_s=begins_s + after_s)
        if not limited:
            time.sleep(after_s)
        finished = len(list(session.glob("runs/*/record.json")))
        with losing_node(session, 5.0 * cell.chance) if cell.end == "node" else contextlib.nullcontext():
            if not limited:
                process.send_signal(signal.SIGKILL if cell.end == "node" else signal.Signals[cell.end])
            process.wait(120)
            time.sleep(cell.wait_s)
            if read_journal(session / "journal")[0][-1].event != "ended":
                process = self.start(f"--resume={session.name}")
                process.wait(300)
        return self.remains(session, process, began, after_s=after_s, finished=finished, what=str(cell))

    def remains(
        self, session: Path, process: subprocess.Popen[bytes], began: float, *, after_s: float, finished: int,
        resumed: int = 0, what: str = "",
    ) -> Round:  # fmt: skip
        """Look at what a session has left."""
        took_s = time.monotonic() - began
        if read_journal(session / "journal")[0][-1].event != "ended":
            print(f"{session} did not end; pytest ended with {process.returncode}", flush=True)
        records = [RunRecord.read(path) for path in session.glob("runs/*/record.json")]
        left = self.left(session)
        double = made_in_vain(session, killed="SIGKILL" in what and not self.nodes) if what else None
        return Round(
            killed_s=round(after_s, 2), finished=finished, tests=self.runs * (self.nodes or 1),
            verdicts=passed(session / "junit.xml"), left=left, what=what,
            double=self.double(session, records) if double is None else double,
            attempts=sum(len(record.superseded) for record in records), resumed=resumed, took_s=round(took_s, 1),
        )  # fmt: skip

    def double(self, session: Path, records: list[RunRecord]) -> int:
        """How many jobs, or runs with a record, were made once more for no reason that a record has."""
        events = read_journal(session / "journal")[0]
        if self.kill == "slurmctld":  # a controller that forgot jobs cannot count them
            made = Counter(event.name for event in events if event.event == "submitted")
            known = {record.key: 1 + len(record.superseded) + len(record.failed_launches) for record in records}
            return sum(max(0, count - known.get(name, 1)) for name, count in made.items())
        if self.cluster == "slurm" and self.nodes is None:
            told = slurm("squeue", "--noheader", "--states=all", "--format=%j|%k").splitlines()
            jobs = Counter(line.split("|")[0] for line in told if f"llmbench:{session.name}" in line)
            return sum(count - 1 for count in jobs.values())
        again, final = 0, set()
        for event in events:
            again += event.event == "submitting" and event.name in final
            if event.event == "finished":
                final.add(event.name)
        return again

    def left(self, session: Path) -> int:
        """How many of its jobs are still in the queue, and, of the matrix of ends, processes on this machine."""
        deadline = time.monotonic() + LEFT_S
        while self.kill == "ends":
            found = [line for line in remains(self.folder) if "llmbench-watchman" not in line and "sleep" not in line]
            if not found or time.monotonic() > deadline:
                print(*found, sep="\n", end="", flush=True)
                return len(found)
            time.sleep(0.5)
        while self.cluster == "slurm":
            lines = slurm("squeue", "--noheader", "--format=%i|%k").splitlines()
            left = sum(f"llmbench:{session.name}" in line for line in lines)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.5)
        return 0


def made_in_vain(session: Path, *, killed: bool) -> int:
    """How many attempts were made again although they had a record without a problem.

    Of a session that was `killed` while its runs were jobs, also those that had done all their work.
    """
    double = 0
    for attempt in (session / "superseded").glob("run*"):
        records = [
            RunRecord.read(path) for path in attempt.glob("*.json") if path.name in {"record.json", "earlier.json"}
        ]
        whole = killed and bool(ranks := read_steps(attempt).ranks) and all(info.ended for info in ranks)
        double += any(record.problem is None for record in records) or whole
    return double


@contextlib.contextmanager
def losing_node(session: Path, away_s: float) -> Iterator[None]:
    """A node on which the session has a job loses its power, and is back after a while; nothing if it has no job."""
    lines = slurm("squeue", "--noheader", "--states=RUNNING", "--format=%k|%N").splitlines()
    nodes = [line.rpartition("|")[2] for line in lines if f"llmbench:{session.name}" in line]
    if not nodes:
        yield
        return
    node = slurm("scontrol", "show", "hostnames", nodes[0]).split()[0]
    base = Path(os.environ.get("LLMBENCH_SLURM", "/tmp/llmbench-slurm"))
    daemon = int((base / "run" / f"slurmd-{node}.pid").read_text())
    there = (Path(f"/proc/{daemon}") / "ns" / "uts").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns" / "uts").readlink() == there != Path("/proc/self/ns/uts").readlink():
                os.kill(int(process.name), signal.SIGKILL)
    slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=power")

    def mend() -> None:
        with MENDING:
            env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
            subprocess.run([str(UP)], env=env, check=True, capture_output=True)

    timer = threading.Timer(away_s, mend)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def matrix(folder: Path, given: argparse.Namespace) -> list[Round]:
    """Make the chosen cells of each round, several at a time; one that breaks is not sound."""
    began, rounds, writing = time.monotonic(), list[Round](), threading.Lock()

    def campaign(name: str, *, held: bool) -> Campaign:
        (folder / name).mkdir()
        return Campaign(folder / name, argparse.Namespace(**{**vars(given), "nodes": 1 if held else None}))

    def alone(number: int) -> tuple[float, float]:
        """Seconds of a session that is left alone, beside others: to the begin of its journal, and from there on."""
        made, at = campaign(f"alone-{number}", held=bool(number % 2)), time.monotonic()
        process, _ = made.begun()
        begins_s = time.monotonic() - at
        if process.wait():
            raise SystemExit((made.folder / "output.log").read_text())
        return begins_s, time.monotonic() - at - begins_s

    with ThreadPoolExecutor(given.at_a_time) as pool:
        measured = [*pool.map(alone, range(max(2, given.at_a_time)))]
    begins_s = max(begins_s for begins_s, _ in measured)
    lengths = {held: fmean(whole_s for _, whole_s in measured[int(held) :: 2]) for held in (False, True)}
    told = {"begins_s": round(begins_s, 1), **{f"held_{held}_s": round(s, 1) for held, s in lengths.items()}}
    print(json.dumps(told), flush=True)

    def play(number: int, cell: Cell) -> None:
        if time.monotonic() - began > given.within:
            return
        made = campaign(f"{number}-{cell}", held=cell.held)
        try:
            seen = made.cell(cell, lengths[cell.held], begins_s)
        except Exception as error:  # noqa: BLE001 - a finding, and the other cells go on
            seen = Round(
                killed_s=0.0, finished=0, tests=1, verdicts=0, double=0, left=0, attempts=0, resumed=0, took_s=0.0,
                what=f"{cell}: {type(error).__name__}: {error}",
            )  # fmt: skip
        with writing:
            rounds.append(seen)
            print(json.dumps({**vars(seen), "sound": seen.is_sound}), flush=True)
            if not seen.is_sound:
                print((made.folder / "output.log").read_text()[-6000:], flush=True)

    every = [(n, cell) for n in range(given.rounds) for cell in cells(given.seed + n, given.part, given.only)]
    with ThreadPoolExecutor(given.at_a_time) as pool:
        for each in [pool.submit(play, *cell) for cell in every]:
            each.result()
    print(json.dumps({"cells": len(every), "not_begun": len(every) - len(rounds)}), flush=True)
    return rounds


def without_controller(process: subprocess.Popen[bytes], away_s: float) -> int:
    """Kill Slurm's controller, start it again a while later, and wait for the session; how many nodes were resumed."""
    base = Path(os.environ.get("LLMBENCH_SLURM", "/tmp/llmbench-slurm"))
    os.kill(int((base / "run" / "slurmctld.pid").read_text()), signal.SIGKILL)
    time.sleep(away_s)
    # Without SLURM_CONF: the script knows its own.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    subprocess.run([str(UP)], env=env, check=True, capture_output=True)
    resumed, seen = 0, dict[str, float]()
    while process.poll() is None:
        resumed += resume_refusing(seen)
        time.sleep(1.0)
    return resumed


def resume_refusing(seen: dict[str, float]) -> int:
    """Bring back nodes that Slurm drained a while ago because they knew the id of a job; how many these were.

    Args:
        seen: our clock when each was first seen drained; kept between calls. An operator is no quicker than a session.
    """
    lines = slurm("sinfo", "--noheader", "--Node", "--format=%N|%E").splitlines()
    drained = {node for node, why in (line.split("|", 1) for line in lines) if why.startswith("Duplicate jobid")}
    for node in drained:
        seen.setdefault(node, time.monotonic())
    due = [node for node in drained if time.monotonic() - seen[node] > OPERATOR_S]
    for node in due:
        slurm("scontrol", "update", f"nodename={node}", "state=resume")
        del seen[node]
    return len(due)


def passed(report: Path) -> int:
    """How many tests a report has that PASS; none that is there twice."""
    cases = Counter[str]()
    for case in ET.parse(report).iter("testcase"):
        if any((p.get("name"), p.get("value")) == ("verdict", "PASS") for p in case.iter("property")):
            cases[case.get("name", "")] += 1
    return sum(count == 1 for count in cases.values())


def slurm(*command: str) -> str:
    """The output of a Slurm command."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout


def main() -> int:
    """Make the rounds; print each as JSON, and their sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--kill", choices=("pytest", "slurmctld", "ends"), default="pytest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--nodes", type=int, help="hold so many nodes, in place of a job for each run")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th cell of the matrix of ends, from the K-th on")
    parser.add_argument("--only", action="append", help="a part of the name of cells, such as SIGINT, -held- or -60s")
    parser.add_argument("--at-a-time", type=int, default=4, help="sessions of the matrix of ends at a time")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no cell after so many seconds")
    given = parser.parse_args()
    if given.kill == "ends" and (given.cluster != "slurm" or given.nodes):
        parser.error("--kill ends: it needs Slurm, and has held nodes and jobs by itself")
    if given.kill == "slurmctld" and (given.cluster != "slurm" or given.nodes):
        parser.error("--kill slurmctld: runs need jobs of their own on Slurm")
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="llmbench-endurance-", dir=Path.cwd().parent) as name:
        if given.kill == "ends":
            return summed(matrix(Path(name), given))
        campaign = Campaign(Path(name), given)
        process, _ = campaign.begun()
        began = time.monotonic()
        if process.wait():
            print((campaign.folder / "output.log").read_text())
            return 1
        whole_s = time.monotonic() - began
        print(json.dumps({"session_left_alone_s": round(whole_s, 1)}), flush=True)
        rounds = []
        for _ in range(given.rounds):
            rounds.append(campaign.round(chance.uniform(0.0, whole_s), chance.uniform(0.0, AWAY_S)))
            print(json.dumps({**vars(rounds[-1]), "sound": rounds[-1].is_sound}), flush=True)
            if not rounds[-1].is_sound:
                print((campaign.folder / "output.log").read_text()[-6000:], flush=True)
    return summed(rounds)


def summed(rounds: list[Round]) -> int:
    """Print the sums; the exit status."""
    sound = sum(each.is_sound for each in rounds)
    names = ("tests", "verdicts", "double", "left", "attempts", "resumed")
    told = {name: sum(getattr(each, name) for each in rounds) for name in names}
    print(json.dumps({"rounds": len(rounds), "sound": sound, **told}))
    return 0 if sound == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
