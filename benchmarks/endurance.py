"""Kill pytest at random moments of a session of twelve runs, resume each, and count what is missing, double or left.

    python -m benchmarks.endurance ROUNDS [--seed N] [--cluster slurm|local] [--nodes N]

A round starts a session, sends SIGKILL to pytest at a moment between its start and the end of a session that is left
alone, and resumes it at once; where it was killed before its journal, it is started anew. Of each session, every test
has to PASS once, no run may have more than one Slurm job (with --nodes, no run that has its record may be made again),
and no job may be left in the queue. The exit status is 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import INSTALLED, PYTEST, TEST_REFERENCES, TINY

RUNS = 12
LEFT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """What came of a session that was killed.

    Attributes:
        killed_s: seconds after its start.
        began: whether it had a journal, so that it was resumed.
        finished: runs that had their record when it was killed.
        verdicts: tests that PASS in the report.
        double: jobs or runs that were made although they were there.
        left: jobs in the queue, half a minute after the end.
    """

    killed_s: float
    began: bool
    finished: int
    verdicts: int
    double: int
    left: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing, double or left."""
        return (self.verdicts, self.double, self.left) == (RUNS, 0, 0)


class Campaign:
    """Sessions of twelve runs in one folder."""

    def __init__(self, folder: Path, cluster: str, nodes: int | None) -> None:
        self.folder, self.cluster, self.nodes = folder, cluster, nodes
        names = [f"run{number:02d}" for number in range(RUNS)]
        recipes = {name: {**TINY, "steps": 20, "options": {"step_s": 0.05}} for name in names}
        (folder / "recipes").mkdir()
        (folder / "recipes" / "twelve.yaml").write_text(yaml.safe_dump({"family": "twelve", "recipes": recipes}))
        (folder / "test_twelve.py").write_text(TEST_REFERENCES)
        (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_gpus_per_node = 0\n")

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start pytest."""
        words = [*PYTEST, "-q", "-k", "run", "--cluster", self.cluster, "--require-verdict", "no", *more]
        words += ["--nodes", str(self.nodes), "--nodes-per-run", "1"] if self.nodes and self.cluster == "slurm" else []
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.folder), "PYTHONPATH": str(INSTALLED)}, start_new_session=True,
            )  # fmt: skip

    def round(self, after_s: float) -> Round:
        """Kill a session at a moment, and go on with it."""
        reports = self.folder / "reports"
        old = set(reports.glob("*-*"))
        process = self.start()
        time.sleep(after_s)
        process.kill()
        process.wait()
        made = [path for path in set(reports.glob("*-*")) - old if (path / "journal").exists()]
        finished = len(list(made[0].glob("runs/*/record.json"))) if made else 0
        began = bool(made) and read_journal(made[0] / "journal")[0] != ()
        process = self.start(*([f"--resume={made[0].name}"] if began else []))
        process.wait()
        session = made[0] if began else max(set(reports.glob("*-*")) - old)
        if began and read_journal(session / "journal")[0][-1].event != "ended":
            print(f"{session} did not end; pytest ended with {process.returncode}", flush=True)
        return Round(
            killed_s=after_s, began=began, finished=finished, verdicts=passed(session / "junit.xml"),
            double=self.double(session), left=self.left(session),
        )  # fmt: skip

    def double(self, session: Path) -> int:
        """How many jobs, or runs with a record, were made once more."""
        if self.cluster == "slurm" and self.nodes is None:
            told = slurm("squeue", "--noheader", "--states=all", "--format=%j|%k").splitlines()
            jobs = Counter(line.split("|")[0] for line in told if f"llmbench:{session.name}" in line)
            return sum(count - 1 for count in jobs.values())
        again, final = 0, set()
        for event in read_journal(session / "journal")[0]:
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


def passed(report: Path) -> int:
    """How many tests a report has that PASS; none that is there twice."""
    cases = Counter[str]()
    for case in ET.parse(report).iter("testcase"):
        if any((p.get("name"), p.get("value")) == ("verdict", "PASS") for p in case.iter("property")):
            cases[case.get("name", "")] += 1
    return sum(count == 1 for count in cases.values())


def slurm(*command: str) -> str:
    """What a Slurm command printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout


def main() -> int:
    """Make the rounds; print each as JSON, and their sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", choices=("slurm", "local"), default="slurm")
    parser.add_argument("--nodes", type=int, help="hold so many nodes, in place of a job for each run")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="llmbench-endurance-", dir=Path.cwd().parent) as name:
        campaign = Campaign(Path(name), given.cluster, given.nodes)
        began = time.monotonic()
        if campaign.start().wait():
            print((campaign.folder / "output.log").read_text())
            return 1
        whole_s = time.monotonic() - began
        print(json.dumps({"session_left_alone_s": round(whole_s, 1)}), flush=True)
        rounds = []
        for _ in range(given.rounds):
            rounds.append(campaign.round(chance.uniform(0.0, whole_s)))
            print(json.dumps({**vars(rounds[-1]), "sound": rounds[-1].is_sound}), flush=True)
        sound = sum(each.is_sound for each in rounds)
        told = {name: sum(getattr(each, name) for each in rounds) for name in ("verdicts", "double", "left", "began")}
        print(json.dumps({"rounds": len(rounds), "sound": sound, **told, "of_verdicts": RUNS * len(rounds)}))
        if sound < len(rounds):
            print((campaign.folder / "output.log").read_text()[-6000:])
    return 0 if sound == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
