"""Questions to Slurm: each is one command, and what it printed is read here."""

import contextlib
import os
import pwd
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pytest_llmbench.cluster.slurm.commands import TIMEOUT_S, SlurmAnswer, ask, plain, succeeded
from pytest_llmbench.cluster.slurm.states import (
    FIELD,
    RECORD,
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    JobRow,
    OurJob,
    job_rows,
    parse_duration,
    parse_time,
)
from pytest_llmbench.core.errors import ClusterError

# Longest wait for an answer while other runs need attention; after it, the last known state stands.
SHORT_WAIT_S = 2.0
# Longest wait for the past events of a job, which are asked for when its run is over and others wait.
_MARKS_S = 10.0
_NEVER = float("inf")
# At the end of a session, a wait that is longer than this is shown to the user.
_PATIENCE_S = 1.0
# Commands that only ask.
_QUESTIONS = ("squeue", "sacct", "sinfo")
# States of a node, as sinfo begins them.
# A node is `inval` if it registered with less than its configuration lists, such as one GPU too few.
_UNAVAILABLE = ("down", "drain", "fail", "inval", "maint", "unknown", "power", "not_responding", "reboot")
# Signs behind a state, such as `idle*`: it does not respond, and it is reserved for maintenance.
_SIGNS = ("*", "$")
# The reason of a node that slurmctld has drained because it refused to start a job by its id.
REFUSED = "Duplicate jobid"
_REFUSED_PERIOD_S = 30.0
# As `scontrol show job` has them, one job a line.
_JOB = re.compile(r"\bJobId=(\d+) .* SubmitTime=(\S+) ")
_STATE = re.compile(r" JobState=(\S+) ")
_NODE = re.compile(r"\bNodeName=(\S+) .*\bSlurmdStartTime=(\S+)")
# A record of `scontrol show assoc_mgr`, whose limits are each followed by their use: `node=4(2)`, or `N` without one.
_GROUP = re.compile(
    r"^(?:ClusterName=\S+ Account=(?P<account>\S+) UserName=(?P<user>[^\s(]*)|QOS=(?P<qos>[^\s(]+))", re.MULTILINE
)
_PARENT = re.compile(r"\bParentAccount=([^\s(]+)")
_GRP = re.compile(r"\bGrp(\w+)=(\S+)")
_USE = re.compile(r"(?:([\w/:.-]+)=)?([\d.]+)\(([\d.]+)\)")
_MARKS = re.compile(r" PreemptTime=(\S+) SuspendTime=(\S+) SecsPreSuspend=")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMarks:
    """Past events of a job, each the time as Slurm prints it, or empty."""

    preempted: str = ""  # time at which a job of higher priority got its nodes; it may run on for a grace time
    suspended: str = ""  # when it was last suspended, or resumed after that
    state: str = field(default="", compare=False)  # its state, in Slurm's word, when this was asked for


class GroupLimit(NamedTuple):
    """A limit on all jobs of an account or QOS together, as it is now."""

    place: str  # the account, its user or the QOS
    name: str  # Slurm's name, such as `GrpTRES=node` or `GrpSubmitJobs`
    most: float  # the limit
    used: float  # its present use
    needed: float  # the use of the job that waits for it

    def __str__(self) -> str:
        return f"{self.name} of {self.place} is {self.most:g}, {self.used:g} in use, and this job takes {self.needed:g}"


class IllNode(NamedTuple):
    """A node that is out of service, with its state and the reason, in Slurm's words."""

    name: str
    state: str
    reason: str

    @property
    def has_failed(self) -> bool:
        """True if it failed, rather than being kept out by an administrator."""
        return self.state.startswith(("down", "fail", "comp")) or self.state.endswith("*")


def describe_nodes(nodes: Iterable[IllNode]) -> str:
    """Nodes with their states and reasons, for people."""
    return ", ".join(dict.fromkeys(f"{node.name} {node.state} ({node.reason})" for node in nodes))


class SlurmQueries:
    """Runs Slurm's commands, and cuts them off when the session has to end.

    Attributes:
        notes: lines for people, oldest first; the reader that shows them removes them.
    """

    def __init__(self, notes: deque[str]) -> None:
        self.notes = notes
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._end_by = _NEVER
        self._asks = True
        self._refusing: set[str] = set()
        self._refusing_asked = -_NEVER

    def end_within(self, seconds: float) -> None:
        """End every command, the running one included, within `seconds` from now, for a session that waits to end."""
        self._end_by = min(self._end_by, time.monotonic() + seconds)

    def ask_no_more(self) -> None:
        """Stop every query, the running one included, because the session ends."""
        self._asks = False

    def ask(self, command: Sequence[str], timeout_s: float | None = None, questions: bytes = b"") -> SlurmAnswer:
        """Run one of Slurm's commands to its end, whatever that is; `questions` are its input.

        Raises NoAnswerError if it was cut off, and ClusterError if it is missing.
        """
        waits: list[str] = []
        began = time.monotonic()

        def limit_s() -> float:
            if not self._asks and command[0] in _QUESTIONS:
                return 0.0
            if not waits and self._end_by != _NEVER and time.monotonic() - began > _PATIENCE_S:
                waits.append(command[0])
                self.notes.append(f"waiting for {command[0]} to answer, at most {max(0.0, self.left_s):.0f} s")
            # Half of what is left: the next command must have time as well.
            return min(TIMEOUT_S if timeout_s is None else timeout_s, self.left_s / 2)

        return ask(command, limit_s, questions=questions)

    @property
    def left_s(self) -> float:
        """Seconds until the session stops waiting for us."""
        return self._end_by - time.monotonic()

    def run(self, command: Sequence[str]) -> str:
        """Run one of Slurm's commands and return what it printed.

        Raises ClusterError if it is missing, failed or hung.
        """
        return succeeded(command, self.ask(command))

    def marks(self, submitted: Mapping[str, str]) -> dict[str, JobMarks]:
        """Past events of jobs by id, by one command, of those that were submitted at the given times.

        The whole answer is empty where Slurm has forgotten one of the jobs.
        """
        questions = "".join(f"show job {job_id}\n" for job_id in submitted).encode()
        try:
            answer = self.ask(("scontrol", "--oneliner"), _MARKS_S, questions).stdout
        except ClusterError:
            return {}
        marks: dict[str, JobMarks] = {}
        for line in answer.splitlines():
            job, times, state = _JOB.search(line), _MARKS.search(line), _STATE.search(line)
            if job is not None and times is not None and submitted.get(job[1]) == job[2]:
                preempted, suspended = map(parse_time, times.groups())
                marks[job[1]] = JobMarks(preempted=preempted, suspended=suspended, state=state[1] if state else "")
        return marks

    def group_limits(self, account: str, qos: str, needs: Mapping[str, float]) -> list[GroupLimit]:
        """The limits on what all jobs together use, of an account, its parents, this user in it, and a QOS.

        Args:
            account: of the job; empty for the user's default.
            qos: of the job; empty if unknown.
            needs: the job's use by name of the limit, such as `GrpTRES=node`.
        """
        user, limits = pwd.getpwuid(os.getuid()).pw_name, list[GroupLimit]()
        if not account:
            own = self._groups("flags=assoc", f"users={user}")
            account = next((match["account"] for match, text in own if "DefAssoc=Yes" in text), "")
        groups = self._groups("flags=qos", f"qos={qos}") if qos else []
        climbed = {account}
        while account:
            found = [
                each for each in self._groups("flags=assoc", f"accounts={account}") if each[0]["user"] in {"", user}
            ]
            groups += found
            above = next((_PARENT.search(text) for match, text in found if not match["user"]), None)
            account = "" if above is None or above[1] in climbed else above[1]
            climbed.add(account)
        for match, text in groups:
            place = f"QOS {match['qos']}" if match["qos"] else f"account {match['account']}"
            place += f" for user {match['user']}" if match["user"] else ""
            for kind, values in _GRP.findall(text):
                for part, most, used in _USE.findall(values):
                    name = f"Grp{kind}{f'={part}' if part else ''}"
                    limits.append(GroupLimit(place, name, float(most), float(used), needs.get(name, 0.0)))
        return limits

    def _groups(self, *which: str) -> list[tuple[re.Match[str], str]]:
        answer, _ = self.answer(["scontrol", "show", "assoc_mgr", *which], SHORT_WAIT_S)
        starts = list(_GROUP.finditer(answer))
        ends = [*(match.start() for match in starts[1:]), len(answer)]
        return [(match, answer[match.start() : end]) for match, end in zip(starts, ends, strict=False)]

    def limits_of(self, job_id: str) -> list[GroupLimit]:
        """The limits on what all jobs together use that count for a waiting job; empty if Slurm hides them."""
        answer, _ = self.answer(["scontrol", "--oneliner", "show", "job", job_id], SHORT_WAIT_S)
        facts = dict(word.split("=", 1) for word in answer.split() if "=" in word)
        minutes = (parse_duration(facts.get("TimeLimit", "")) or 0.0) / 60
        needs = {"GrpJobs": 1.0, "GrpSubmitJobs": 1.0, "GrpWall": minutes}
        for part, amount in re.findall(r"([\w/:.-]+)=([\d.]+[KMGTP]?)", facts.get("ReqTRES", facts.get("TRES", ""))):
            size = 1024.0 ** ("KMGTP".find(amount[-1]) - 1) if part == "mem" and amount[-1].isalpha() else 1.0
            number = float(amount.rstrip("KMGTP")) * size
            needs |= {f"GrpTRES={part}": number}
            needs |= dict.fromkeys((f"GrpTRESMins={part}", f"GrpTRESRunMins={part}"), number * minutes)
        return self.group_limits(facts.get("Account", ""), facts.get("QOS", ""), needs)

    def suspended_s(self, job: OurJob, submitted: str) -> float | None:
        """Seconds for which a job was suspended in all, by sacct; None where sacct leaves it open."""
        fields = "JobIDRaw,Submit,JobName,Suspended"
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--delimiter={FIELD}", f"--format={fields}"]
        answer, _ = self.answer([*command, f"--jobs={job.id}"], _MARKS_S)
        for line in answer.splitlines():
            match line.split(FIELD):
                case [job.id, at, name, seconds] if at == submitted and job.identity.name in {"", name}:
                    return parse_duration(seconds)
        return None

    def refusing_node(self, hosts: Iterable[str]) -> str:
        """The node among these that refuses jobs because it remembers their ids from before a restart; else empty.

        One query answers for all jobs, and for half a minute.
        """
        if time.monotonic() - self._refusing_asked > _REFUSED_PERIOD_S:
            self._refusing_asked = time.monotonic()
            rows = self._sinfo(("%N", "%E"), "--Node", timeout_s=SHORT_WAIT_S)
            self._refusing = {node for node, reason in rows if reason.startswith(REFUSED)}
        return next((host for host in hosts if host in self._refusing), "")

    def restarted(self, hosts: Sequence[str], since: float) -> tuple[str, ...]:
        """The nodes whose slurmd was started after a Unix time: at the latest then, the node was."""
        answer, _ = self.answer(["scontrol", "--oneliner", "show", "node", ",".join(hosts)], SHORT_WAIT_S)
        late = []
        for name, at in _NODE.findall(answer):
            with contextlib.suppress(ValueError):
                late += [name] if datetime.fromisoformat(at).timestamp() > since else []
        return tuple(late)

    def knows_no_node(self) -> bool:
        """True if the controller lists every node as down or unknown, as it does for a while after its start."""
        states = [state for (state,) in self._sinfo(("%T",)) if state]
        return bool(states) and all(state.startswith(("unknown", "down")) for state in states)

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        """Expand Slurm's node notation. Raises ClusterError: scontrol refuses it."""
        if "[" not in nodelist:
            return tuple(nodelist.split(","))
        if nodelist not in self._hosts:
            self._hosts[nodelist] = tuple(self.run(["scontrol", "show", "hostnames", nodelist]).split())
        return self._hosts[nodelist]

    def partitions(self) -> str:
        """List the partitions with node counts and time limits, for people; empty when sinfo fails."""
        rows = self._sinfo(("%P", "%D", "%l"))
        return ", ".join(dict.fromkeys(f"{name} ({nodes} nodes, limit {limit})" for name, nodes, limit in rows))

    def unavailable(self) -> str:
        """List the nodes that are out of service, with state and reason, for people."""
        return describe_nodes(self.ill_nodes())

    def ill_nodes(self, nodelist: str = "") -> list[IllNode]:
        """The nodes that are out of service, in a list of nodes or in the whole cluster."""
        rows = self._sinfo(("%N", "%T", "%E"), "--Node", *([f"--nodes={nodelist}"] if nodelist else []))
        # While its last job is being cleaned up, a failed node is `completing`; the reason is there already.
        nodes = (IllNode(*row) for row in rows)
        return [
            node for node in nodes
            if node.state.startswith(_UNAVAILABLE) or node.state.endswith(_SIGNS)
            or (node.state.startswith("comp") and node.reason != "none")
        ]  # fmt: skip

    def squeue(self, *which: str) -> tuple[list[JobRow], str]:
        """The jobs that squeue shows, and the reason if it failed."""
        fields = RECORD + FIELD.join(SQUEUE_FIELDS)
        answer, error = self.answer(["squeue", "--noheader", "--states=all", f"--format={fields}", *which])
        return list(job_rows(answer.split(RECORD))), error

    def sacct(self, *which: str) -> tuple[list[JobRow], str]:
        """The jobs that sacct shows, and the reason if it failed."""
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", f"--delimiter={FIELD}"]
        answer, error = self.answer([*command, f"--format={','.join(SACCT_FIELDS)}", *which])
        rows = (line.split(FIELD, len(SACCT_FIELDS) - 1) for line in answer.split("\n"))
        return list(job_rows(FIELD.join((*row[:-1], "", "", *row[-1:])) for row in rows)), error

    def answer(self, command: Sequence[str], timeout_s: float | None = None) -> tuple[str, str]:
        """The output of a command, and the reason if it failed."""
        try:
            return succeeded(command, self.ask(command, timeout_s)), ""
        except ClusterError as error:
            return "", str(error)

    def _sinfo(self, fields: Sequence[str], *which: str, timeout_s: float | None = None) -> Iterator[list[str]]:
        answer, _ = self.answer(["sinfo", "--noheader", f"--format={RECORD}{FIELD.join(fields)}", *which], timeout_s)
        for record in answer.split(RECORD):
            values = [plain(text) for text in record.split(FIELD)]
            if len(values) == len(fields):
                yield values
