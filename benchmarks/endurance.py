"""Kill pytest or Slurm's controller at random moments of sessions of twelve runs; count the missing, double and left.

    python -m benchmarks.endurance ROUNDS [--kill pytest|slurmctld] [--seed N] [--cluster slurm|local] [--nodes N]

A round starts a session and waits for its journal. With `--kill pytest`, it sends SIGKILL to pytest at a moment between
then and the end of a session that is left alone, and resumes the session at once. With `--kill slurmctld`, it sends
SIGKILL to the controller of the Slurm that tools/slurm/up.sh has brought up, starts it again a few seconds later by
that script, and resumes nodes that Slurm drains because they know the id of a job ("Duplicate jobid"), as an operator
would; the session has `--llmbench-retries 5`.
LLMBENCH_SLURM, LLMBENCH_SLURM_PORT and ACCOUNTING are those of that Slurm.

Of each session, every test has to PASS once, no run may have more than one job (with --nodes, no run that has its
record may be made again) but for attempts that its record has as superseded, and no job may be left in the queue. The
exit status is 1 if one of these fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import yaml

from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import INSTALLED, PYTEST, TEST_REFERENCES, TINY

RUNS = 12
LEFT_S = 60.0
BEGINS_S = 120.0
AWAY_S = 5.0
OPERATOR_S = 20.0
UP = Path(__file__).parents[1] / "tools" / "slurm" / "up.sh"
# A job that a speaking Slurm does not know is lost after this, not after 2 minutes: a round ends sooner.
IMPATIENT = "from pytest_llmbench.cluster.slurm import queue\nqueue.PATIENCE_S = 20.0\n"


@dataclass(frozen=True, kw_only=True)
class Round:
    """The remains of a session in which something was killed.

    Attributes:
        killed_s: seconds after its journal began.
        finished: runs that had their record when it was killed.
        tests: tests of the session: one for each run, on each group of held nodes.
        verdicts: tests that PASS in the report.
        double: jobs or runs that were made although they were there.
        left: jobs in the queue, a minute after the end.
        attempts: attempts at runs that `--llmbench-retries` has repeated.
        resumed: nodes that were drained, and brought back.
        took_s: seconds from the start of the session to its end.
    """

    killed_s: float
    finished: int
    tests: int
    verdicts: int
    double: int
    left: int
    attempts: int
    resumed: int
    took_s: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing, double or left."""
        return (self.verdicts, self.double, self.left) == (self.tests, 0, 0)


class Campaign:
    """Sessions of twelve runs in one folder."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.cluster, self.nodes, self.kill = folder, given.cluster, given.nodes, given.kill
        names = [f"run{number:02d}" for number in range(RUNS)]
        recipes = {name: {**TINY, "steps": 20, "options": {"step_s": 0.05}} for name in names}
        (folder / "recipes").mkdir()
        (folder / "recipes" / "twelve.yaml").write_text(yaml.safe_dump({"family": "twelve", "recipes": recipes}))
        (folder / "test_twelve.py").write_text(TEST_REFERENCES)
        (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_gpus_per_node = 0\n")
        if self.kill == "slurmctld":
            (folder / "conftest.py").write_text(IMPATIENT)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start pytest."""
        words = [*PYTEST, "-q", "-k", "run", "--cluster", self.cluster, "--llmbench-require-verdict", "no", *more]
        words += ["--nodes", str(self.nodes), "--nodes-per-run", "1"] if self.nodes and self.cluster == "slurm" else []
        words += ["--llmbench-retries", "5"] if self.kill == "slurmctld" else []
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.folder), "PYTHONPATH": str(INSTALLED)}, start_new_session=True,
            )  # fmt: skip

    def begun(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a session; return it as soon as its journal has begun."""
        old = set((self.folder / "reports").glob("*-*"))
        process, deadline = self.start(), time.monotonic() + BEGINS_S
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
        took_s = time.monotonic() - began
        if read_journal(session / "journal")[0][-1].event != "ended":
            print(f"{session} did not end; pytest ended with {process.returncode}", flush=True)
        records = [RunRecord.read(path) for path in session.glob("runs/*/record.json")]
        left = self.left(session)
        return Round(
            killed_s=round(after_s, 2), finished=finished, tests=RUNS * (self.nodes or 1),
            verdicts=passed(session / "junit.xml"), double=self.double(session, records), left=left,
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
        """How many of its jobs are still in the queue."""
        deadline = time.monotonic() + LEFT_S
        while self.cluster == "slurm":
            lines = slurm("squeue", "--noheader", "--format=%i|%k").splitlines()
            left = sum(f"llmbench:{session.name}" in line for line in lines)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.5)
        return 0


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
    parser.add_argument("--kill", choices=("pytest", "slurmctld"), default="pytest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--nodes", type=int, help="hold so many nodes, in place of a job for each run")
    given = parser.parse_args()
    if given.kill == "slurmctld" and (given.cluster != "slurm" or given.nodes):
        parser.error("--kill slurmctld: runs need jobs of their own on Slurm")
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="llmbench-endurance-", dir=Path.cwd().parent) as name:
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
        sound = sum(each.is_sound for each in rounds)
        summed = ("tests", "verdicts", "double", "left", "attempts", "resumed")
        told = {name: sum(getattr(each, name) for each in rounds) for name in summed}
        print(json.dumps({"rounds": len(rounds), "sound": sound, **told}))
    return 0 if sound == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
