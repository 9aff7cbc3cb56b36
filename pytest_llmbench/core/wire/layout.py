"""Names of the files in a session's folder, shared by login node, ranks and plugin.

session.json  system.json  plan.json  journal  live.json  owner  stop  junit.xml
summary.md  verdict.json  verdicts.json  report.html  allocation/  repeats/  superseded/
runs/KEY/     record.json  job.json  task.json, or command.json  run.sh  driver.json  hostfile  rendezvous.json
enough.json  steps/rank-00000.jsonl  phase/rank-00000  pauses/rank-00000  logs/output.log  logs/rank-0.log
              simulated/rank-00000  started_again  asked  stacks/rank-00000.txt, or stacks/processes.txt
checks/NAME/  record.json  steps/001-PROBE/, each with task.json  answers/rank-00000.json  phase/  logs/  meeting/
"""

import os
import time
from pathlib import Path

# Files of a session. Its plan is written before anything starts; that of the first xdist worker, before the
# controller reads.
PLAN, WORKERS_PLAN, JUNIT = "session.json", "plan.json", "junit.xml"
# Facts of the system that its logs are judged by.
SYSTEM = "system.json"
# For CI systems; the verdict is written last of all.
SUMMARY, VERDICT = "summary.md", "verdict.json"
# Beside the folders of sessions: a link to the latest that began.
LATEST = "latest"
# After `--resume`, instead of a session's name: the newest session that did not end.
NEWEST = "newest"
JOURNAL = "journal"
# Every verdict of the session with its properties, and the page that shows them with the records.
VERDICTS, PAGE = "verdicts.json", "report.html"
# Checks, and attempts at runs, that a resumed session has made again; and the earlier record of such a run.
SUPERSEDED, EARLIER = "superseded", "earlier.json"
OWNER, STOP = "owner", "stop"
# How all runs stand, for people who watch.
LIVE = "live.json"
# What xdist workers ask for, a file for each run that is to be repeated, with the number of runs and of the look.
REPEATS = "repeats"
HOLDER = "allocation"
FOLDERS = {"run": "runs", "check": "checks"}

# Files of a run or a check.
RECORD, JOB = "record.json", "job.json"
# A record whose file was changed while its session ran is put aside under this name.
ALTERED = "record-altered.json"
TASK, RENDEZVOUS = "task.json", "rendezvous.json"
# The session has seen enough steps: the ranks end after the next ones.
ENOUGH = "enough.json"
# Ranks that caused the fault of `--llmbench-simulate`.
STRIKES = "simulated"
# A process of the run was started a second time, and refused to begin.
AGAIN = "started_again"
# The session asks the processes of a run that may hang for their stacks.
ASKED, STACKS, PROCESSES = "asked", "stacks", "processes.txt"
# NCCL's own lines of ranks.
NCCL = "nccl"
COMMAND, SCRIPT, DRIVER, HOSTFILE = "command.json", "run.sh", "driver.json", "hostfile"
STEPS, PHASES, ANSWERS, PAUSES, MEETING = "steps", "phase", "answers", "pauses", "meeting"
LOGS, OUTPUT, SRUN, LAUNCHER = "logs", "logs/output.log", "srun.log", "launcher_log.err"


def new_id() -> str:
    """Make the id of a session: its start time and random digits.

    The first three of the six digits after the second are its 4096th parts, so sessions sort by their beginning.
    """
    second, part = divmod(time.time_ns(), 10**9)
    chance = int.from_bytes(os.urandom(2), "big") % 4096
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(second))}-{part * 4096 // 10**9:03x}{chance:03x}"


def rank_name(rank: int) -> str:
    """Name of a rank's files."""
    return f"rank-{rank:05d}"


def printed(rank: int | str) -> str:
    """Name of the log of what a rank of a step prints; `%t` is srun's word for the rank."""
    return f"rank-{rank}.log"


def step_log(rank: int) -> str:
    """Name of a rank's step log."""
    return f"{rank_name(rank)}.jsonl"


def phase(folder: Path, rank: int) -> Path:
    """The file with the current phase of a rank."""
    return folder / PHASES / rank_name(rank)


def stacks(folder: Path, rank: int) -> Path:
    """The file with the stacks of a rank."""
    return folder / STACKS / f"{rank_name(rank)}.txt"


def answer(folder: Path, rank: int) -> Path:
    """The answer of a rank of a probe."""
    return folder / ANSWERS / f"{rank_name(rank)}.json"
